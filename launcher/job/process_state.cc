#include "launcher/job/process_state.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <set>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/base/fd.h"

namespace lockstep {
namespace {

// What a single read gives, which is all of these files; nothing once the thread has ended, also
// between open and read (where the standard library's streams throw).
std::string Contents(const std::filesystem::path& file) {
  const Fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  char bytes[1024];
  const ssize_t count = fd.valid() ? ::read(fd.get(), bytes, sizeof(bytes)) : -1;
  return count > 0 ? std::string(bytes, static_cast<size_t>(count)) : "";
}

constexpr char kGone = 'X';

// Of proc(5)'s stat, what follows the command, which may hold anything, in parentheses: the state,
// and six fields on flags. A thread on its way out is as good as gone, unless it waits.
char StateOf(const std::filesystem::path& thread) {
  constexpr uint32_t kExiting = 0x4;  // the kernel's PF_EXITING
  const std::string stat = Contents(thread / "stat");
  const size_t end = stat.rfind(") ");
  if (end == std::string::npos) return kGone;
  const std::vector<std::string> fields =
      absl::StrSplit(stat.substr(end + 2), absl::MaxSplits(' ', 7));
  uint32_t flags = 0;
  if (fields[0].size() != 1 || fields.size() < 8 || !absl::SimpleAtoi(fields[6], &flags)) {
    return kGone;
  }
  const char state = fields[0][0];
  return (flags & kExiting) != 0 && state != 'D' ? kGone : state;
}

}  // namespace

std::string DescribeProcess(pid_t pid) {
  int num_threads = 0, num_running = 0, num_stopped = 0, num_waiting = 0;
  std::set<std::string> waits;  // the kernel's names of what for
  std::error_code error;
  for (std::filesystem::directory_iterator threads(absl::StrCat("/proc/", pid, "/task"), error),
       end;
       !error && threads != end; threads.increment(error)) {
    const char state = StateOf(threads->path());
    if (state == 'Z' || state == kGone) continue;
    ++num_threads;
    num_running += state == 'R' ? 1 : 0;
    num_stopped += state == 'T' || state == 't' ? 1 : 0;
    if (state != 'D') continue;
    ++num_waiting;
    const std::string what = Contents(threads->path() / "wchan");
    if (!what.empty() && what != "0") waits.insert(what);
  }
  if (num_threads == 0) return "";
  if (num_stopped > 0) return "it is stopped";
  if (num_waiting > 0) {
    return absl::StrCat(num_waiting, " of ", num_threads, " threads wait uninterruptibly",
                        waits.empty() ? "" : absl::StrCat(" (", absl::StrJoin(waits, ", "), ")"),
                        ": a driver or storage hangs");
  }
  if (num_running == 0) return absl::StrCat("all of ", num_threads, " threads sleep");
  return absl::StrCat(num_running, " of ", num_threads, " threads run");
}

}  // namespace lockstep
