#include "launcher/job/process_state.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
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

// Of proc(5)'s stat. The fields are counted from what follows the command, which may hold anything,
// in parentheses.
struct Stat {
  char state = kGone;
  bool is_exiting = false;
  int wait_status = 0;  // of one that ends; 0, too, where the system does not show it
};

Stat StatOf(const std::filesystem::path& process_or_thread) {
  constexpr uint32_t kExiting = 0x4;  // the kernel's PF_EXITING
  constexpr size_t kFlags = 6, kExitCode = 49;
  const std::string stat = Contents(process_or_thread / "stat");
  const size_t end = stat.rfind(") ");
  if (end == std::string::npos) return {};
  const std::vector<std::string> fields = absl::StrSplit(stat.substr(end + 2), ' ');
  uint32_t flags = 0;
  if (fields[0].size() != 1 || fields.size() <= kFlags ||
      !absl::SimpleAtoi(fields[kFlags], &flags)) {
    return {};
  }
  Stat result = {fields[0][0], (flags & kExiting) != 0};
  if (fields.size() <= kExitCode ||
      !absl::SimpleAtoi(absl::StripAsciiWhitespace(fields[kExitCode]), &result.wait_status)) {
    result.wait_status = 0;
  }
  return result;
}

// A thread on its way out is as good as gone, unless it waits.
bool IsGone(const Stat& thread) {
  return thread.state == 'Z' || thread.state == kGone || (thread.is_exiting && thread.state != 'D');
}

// Nothing of one that ended well, as one of which the system does not tell looks the same.
std::string DescribeEnd(pid_t pid) {
  if (const auto signal = SignalThatKilled(pid)) {
    return absl::StrCat("it was ", KilledBySignal(*signal));
  }
  const int status = StatOf(absl::StrCat("/proc/", pid)).wait_status;
  if (!WIFEXITED(status) || WEXITSTATUS(status) == 0) return "";
  return absl::StrCat("it ended with exit code ", WEXITSTATUS(status));
}

}  // namespace

std::vector<pid_t> ChildrenOf(pid_t pid) {
  std::vector<pid_t> children;
  std::error_code error;
  for (std::filesystem::directory_iterator threads(absl::StrCat("/proc/", pid, "/task"), error),
       end;
       !error && threads != end; threads.increment(error)) {
    std::ifstream list(threads->path() / "children");
    for (pid_t child = 0; list >> child;) children.push_back(child);
  }
  return children;
}

std::optional<int> SignalThatKilled(pid_t pid) {
  const Stat stat = StatOf(absl::StrCat("/proc/", pid));
  if (!IsGone(stat) || !WIFSIGNALED(stat.wait_status)) return std::nullopt;
  return WTERMSIG(stat.wait_status);
}

std::string KilledBySignal(int signal) {
  return absl::StrCat("killed by signal ", signal, " (", ::strsignal(signal), ")");
}

std::string DescribeProcess(pid_t pid) {
  int num_threads = 0, num_running = 0, num_stopped = 0, num_waiting = 0;
  std::set<std::string> waits;  // the kernel's names of what for
  std::error_code error;
  for (std::filesystem::directory_iterator threads(absl::StrCat("/proc/", pid, "/task"), error),
       end;
       !error && threads != end; threads.increment(error)) {
    const Stat stat = StatOf(threads->path());
    if (IsGone(stat)) continue;
    const char state = stat.state;
    ++num_threads;
    num_running += state == 'R' ? 1 : 0;
    num_stopped += state == 'T' || state == 't' ? 1 : 0;
    if (state != 'D') continue;
    ++num_waiting;
    const std::string what = Contents(threads->path() / "wchan");
    if (!what.empty() && what != "0") waits.insert(what);
  }
  if (num_threads == 0) return DescribeEnd(pid);
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
