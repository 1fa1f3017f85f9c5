#include "launcher/job/weight_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace lockstep {

absl::StatusOr<WeightMemory> WeightMemory::Create(int num_ranks) {
  std::vector<Fd> files;
  for (int rank = 0; rank < num_ranks; ++rank) {
    files.emplace_back(::memfd_create("lockstep weights", MFD_CLOEXEC));
    if (!files.back().valid() || ::fchmod(files.back().get(), 0600) != 0) {
      return absl::UnavailableError(
          absl::StrCat("cannot make a file in memory: ", std::strerror(errno)));
    }
  }
  return WeightMemory(std::move(files));
}

std::string WeightMemory::ToString() const {
  return absl::StrCat(::getpid(), ":",
                      absl::StrJoin(files_, ",", [](std::string* out, const Fd& file) {
                        absl::StrAppend(out, file.get());
                      }));
}

absl::StatusOr<std::filesystem::path> WeightMemory::PathOf(absl::string_view text, int rank) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  int pid = 0;
  int fd = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &pid) || pid < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("weight memory is '", text, "', not PID:FD,..."));
  }
  const std::vector<absl::string_view> files = absl::StrSplit(parts[1], ',');
  if (rank < 0 || rank >= std::ssize(files) ||
      !absl::SimpleAtoi(files[static_cast<size_t>(rank)], &fd) || fd < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("weight memory '", text, "' has no file for rank ", rank));
  }
  return std::filesystem::path(absl::StrCat("/proc/", pid, "/fd/", fd));
}

}  // namespace lockstep
