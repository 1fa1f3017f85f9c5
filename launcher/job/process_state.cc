#include "launcher/job/process_state.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lockstep {
namespace {

std::string Contents(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// Of proc(5)'s stat: what follows the command, which may hold anything, in parentheses.
char StateOf(const std::filesystem::path& thread) {
  const std::string stat = Contents(thread / "stat");
  const size_t end = stat.rfind(") ");
  return end == std::string::npos || end + 2 >= stat.size() ? '?' : stat[end + 2];
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
    if (state == 'Z' || state == 'X' || state == '?') continue;
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
