#include "launcher/job/job_supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/check.h"

namespace lockstep {
namespace {

// The end of the job closes its output, so a wait mostly wakes at once; this bounds the wait for a
// process that closed it early.
constexpr absl::Duration kReapInterval = absl::Milliseconds(20);
constexpr size_t kMaxLineBytes = 16 << 10;

// Pointers for execve; the strings must outlive it.
std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// In the child between fork and exec, where other threads' locks may be held: system calls only.
// Returns on errors.
void BecomeJob(pid_t parent, int output, char* const* command, char* const* environment) {
  ::setpgid(0, 0);
  // SIGTERM: mpirun then ends its ranks in order. The launcher may be gone already.
  if (::prctl(PR_SET_PDEATHSIG, SIGTERM) != 0) return;
  if (::getppid() != parent) _exit(1);
  const int null = ::open("/dev/null", O_RDONLY);
  if (null < 0 || ::dup2(null, 0) < 0 || ::dup2(output, 1) < 0 || ::dup2(output, 2) < 0) return;
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_DFL);
  ::execve(command[0], command, environment);
}

// All children of this process: mpirun has been reaped, so they are what it left behind (see
// PR_SET_CHILD_SUBREAPER).
std::vector<pid_t> Children() {
  std::vector<pid_t> children;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream list(task.path() / "children");
    for (pid_t pid = 0; list >> pid;) children.push_back(pid);
  }
  return children;
}

void KillAdopted() {
  for (std::vector<pid_t> left = Children(); !left.empty(); left = Children()) {
    for (const pid_t pid : left) ::kill(pid, SIGKILL);
    for (const pid_t pid : left) ::waitpid(pid, nullptr, 0);
  }
}

}  // namespace

std::string JobExit::ToString() const {
  if (signal == 0) return absl::StrCat("exit code ", code);
  return absl::StrCat("signal ", signal, " (", ::strsignal(signal), ")");
}

JobSupervisor::JobSupervisor(pid_t pid, Fd output, OnLine on_line)
    : pid_(pid), output_(std::move(output)), on_line_(std::move(on_line)) {}

absl::StatusOr<std::unique_ptr<JobSupervisor>> JobSupervisor::Start(const JobSpec& spec,
                                                                    OnLine on_line) {
  LS_CHECK(!spec.command.empty());
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  int output[2];
  int failure[2];  // carries errno out of the child; closed by a successful exec
  if (::pipe2(output, O_CLOEXEC) != 0) return absl::UnavailableError(std::strerror(errno));
  Fd output_read(output[0]), output_write(output[1]);
  if (::pipe2(failure, O_CLOEXEC) != 0) return absl::UnavailableError(std::strerror(errno));
  Fd failure_read(failure[0]), failure_write(failure[1]);
  const std::vector<char*> command = Pointers(spec.command);
  const std::vector<char*> environment = Pointers(spec.environment);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return absl::UnavailableError(absl::StrCat("fork: ", std::strerror(errno)));
  if (pid == 0) {
    BecomeJob(parent, output_write.get(), command.data(), environment.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t written = ::write(failure_write.get(), &error, sizeof(error));
    _exit(127);
  }
  output_write.Close();
  failure_write.Close();
  int error = 0;
  if (::read(failure_read.get(), &error, sizeof(error)) == static_cast<ssize_t>(sizeof(error))) {
    ::waitpid(pid, nullptr, 0);
    return absl::UnavailableError(
        absl::StrCat("cannot run ", spec.command[0], ": ", std::strerror(error)));
  }
  ::fcntl(output_read.get(), F_SETFL, O_NONBLOCK);
  return std::unique_ptr<JobSupervisor>(
      new JobSupervisor(pid, std::move(output_read), std::move(on_line)));
}

JobSupervisor::~JobSupervisor() { Terminate(absl::ZeroDuration()); }

void JobSupervisor::FlushLine() {
  if (!partial_line_.empty()) on_line_(partial_line_);
  partial_line_.clear();
}

void JobSupervisor::ReadOutput() {
  char buffer[4096];
  ssize_t count = 0;
  while (output_.valid() && (count = ::read(output_.get(), buffer, sizeof(buffer))) > 0) {
    for (const char c : absl::string_view(buffer, static_cast<size_t>(count))) {
      if (c != '\n') partial_line_.push_back(c);
      if (c == '\n' || partial_line_.size() >= kMaxLineBytes) FlushLine();
    }
  }
  if (output_.valid() && (count == 0 || (errno != EAGAIN && errno != EINTR))) {
    FlushLine();
    output_.Close();
  }
}

bool JobSupervisor::TryReap() {
  if (exit_) return true;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return false;
  KillAdopted();
  ReadOutput();
  FlushLine();
  exit_ = WIFSIGNALED(status) ? JobExit{0, WTERMSIG(status)} : JobExit{WEXITSTATUS(status), 0};
  return true;
}

bool JobSupervisor::Wait(absl::Time deadline) {
  while (!TryReap()) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    pollfd poll_output = {output_.get(), POLLIN, 0};
    const absl::Duration sleep = std::min(left, kReapInterval);
    ::poll(&poll_output, 1, static_cast<int>(absl::ToInt64Milliseconds(sleep)) + 1);
    ReadOutput();
  }
  return true;
}

JobExit JobSupervisor::Terminate(absl::Duration grace) {
  if (!exit_ && grace > absl::ZeroDuration()) {
    ::kill(pid_, SIGTERM);
    Wait(absl::Now() + grace);
  }
  if (!exit_) {
    ::kill(-pid_, SIGKILL);
    Wait(absl::InfiniteFuture());
  }
  return *exit_;
}

}  // namespace lockstep
