#include "tests/support/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/check.h"
#include "tests/support/read_file.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
constexpr char kMarkName[] = "LOCKSTEP_TEST_PROCESS";

std::string NewMark() {
  static std::atomic<int> counter{0};
  return absl::StrCat(kMarkName, "=", ::getpid(), ".", counter++);
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> Environment(const std::string& mark,
                                     const std::map<std::string, std::string>& added) {
  std::vector<std::string> environment = {mark};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    if (name != kMarkName && !added.contains(name)) environment.push_back(text);
  }
  for (const auto& [name, value] : added) environment.push_back(absl::StrCat(name, "=", value));
  return environment;
}

}  // namespace

Process::Process(const std::vector<std::string>& command,
                 const std::map<std::string, std::string>& environment)
    : mark_(NewMark()) {
  std::vector<std::string> arguments = command;
  std::vector<std::string> variables = Environment(mark_, environment);
  const std::vector<char*> argv = Pointers(arguments);
  const std::vector<char*> envp = Pointers(variables);
  int out[2];
  int err[2];
  LS_CHECK_EQ(::pipe2(out, O_CLOEXEC), 0);
  LS_CHECK_EQ(::pipe2(err, O_CLOEXEC), 0);
  pid_ = ::fork();
  LS_CHECK_GE(pid_, 0);
  if (pid_ == 0) {
    const int null = ::open("/dev/null", O_RDONLY);
    ::dup2(null, 0);
    ::dup2(out[1], 1);
    ::dup2(err[1], 2);
    ::execvpe(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  ::close(out[1]);
  ::close(err[1]);
  out_reader_ = std::thread([this, fd = out[0]] { Collect(fd, out_); });
  err_reader_ = std::thread([this, fd = err[0]] { Collect(fd, err_); });
}

Process::~Process() {
  for (const pid_t pid : Marked()) ::kill(pid, SIGKILL);
  Wait(absl::InfiniteDuration());
  out_reader_.join();
  err_reader_.join();
}

void Process::Collect(int fd, std::string& into) {
  char buffer[4096];
  ssize_t count = 0;
  while ((count = ::read(fd, buffer, sizeof(buffer))) > 0) {
    std::lock_guard lock(mutex_);
    into.append(buffer, static_cast<size_t>(count));
    changed_.notify_all();
  }
  ::close(fd);
  std::lock_guard lock(mutex_);
  --open_streams_;
  changed_.notify_all();
}

void Process::Signal(int signal) const { LS_CHECK_EQ(::kill(pid_, signal), 0); }

std::optional<int> Process::Wait(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!exit_code_) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      exit_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    } else if (absl::Now() >= deadline) {
      return std::nullopt;
    } else {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  // A descendant may hold the streams open.
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::seconds(5), [&] { return open_streams_ == 0; });
  return exit_code_;
}

std::string Process::out() {
  std::lock_guard lock(mutex_);
  return out_;
}

std::string Process::err() {
  std::lock_guard lock(mutex_);
  return err_;
}

bool Process::WaitForOutput(const std::function<bool(const std::string&)>& condition,
                            absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout),
                    [&] { return condition(out_) || open_streams_ == 0; });
  return condition(out_);
}

std::vector<pid_t> Process::Marked() const {
  std::vector<pid_t> marked;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", error)) {
    int pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    const std::string environment = std::string(1, '\0') + ReadFile(entry.path() / "environ");
    if (environment.find(std::string(1, '\0') + mark_ + std::string(1, '\0')) !=
        std::string::npos) {
      marked.push_back(pid);
    }
  }
  return marked;
}

bool Process::WaitUntilNoneMarked(absl::Duration timeout) const {
  const absl::Time deadline = absl::Now() + timeout;
  while (!Marked().empty()) {
    if (absl::Now() >= deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

double CpuSeconds(pid_t pid) {
  // Source: proc(5), /proc/pid/stat: utime and stime are fields 14 and 15; the name in field 2 may
  // hold spaces.
  const std::string stat = ReadFile(fs::path("/proc") / absl::StrCat(pid) / "stat");
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return 0.0;
  std::istringstream fields(stat.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field <= 13; ++field) fields >> skipped;
  double user = 0.0;
  double system = 0.0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace lockstep::testing
