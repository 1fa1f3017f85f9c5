#include "launcher/job/job_supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_clock.h"
#include "launcher/base/host_name.h"
#include "launcher/base/signals.h"
#include "launcher/job/private_network.h"
#include "launcher/job/process_state.h"

namespace lockstep {
namespace {

// Of looks after the end of a job of which the kernel does not tell (Linux before 5.3, gVisor).
constexpr absl::Duration kReapInterval = absl::Milliseconds(20);
// For those it left behind, which nothing tells of and mostly are gone in milliseconds.
constexpr absl::Duration kAdoptedReapInterval = absl::Milliseconds(2);
constexpr size_t kMaxLineBytes = 16 << 10;
constexpr absl::string_view kMarkVariable = "LOCKSTEP_JOB";

// Pointers for execve; the strings must outlive it.
std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// What the child needs, made before the fork.
struct JobStart {
  pid_t parent;
  int input;
  int output;
  const PrivateNetwork* network;  // null: the host's
  char* const* command;
  char* const* environment;
  int signal_without_launcher;
};

// In the child between fork and exec, where other threads' locks may be held: system calls only.
// Returns on errors.
void BecomeJob(const JobStart& start) {
  ::setsid();  // a terminal's Ctrl-C is not for it, and its processes can be told from others
  if (start.network != nullptr && !start.network->Enter()) return;
  // The launcher may be gone already.
  if (::prctl(PR_SET_PDEATHSIG, start.signal_without_launcher) != 0) return;
  if (::getppid() != start.parent) _exit(1);
  if (::dup2(start.input, 0) < 0 || ::dup2(start.output, 1) < 0 || ::dup2(start.output, 2) < 0) {
    return;
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXFSZ, SIGCHLD})
    ::signal(signal, SIG_DFL);
  // Connections of this server would stay open in it, whoever opened them.
  ::close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
  ::execve(start.command[0], start.command, start.environment);
}

struct Pipe {
  Fd read;
  Fd write;
};

absl::StatusOr<Pipe> OpenPipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) == 0) return Pipe{Fd(ends[0]), Fd(ends[1])};
  return absl::UnavailableError(absl::StrCat("pipe: ", std::strerror(errno)));
}

// glibc 2.36 declares pidfd_open in a way that C++ cannot link.
Fd OpenPidfd(pid_t pid) { return Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

// A pipe's read end that holds `bytes` and nothing after them.
absl::StatusOr<Fd> PipeHolding(const std::string& bytes) {
  ASSIGN_OR_RETURN(Pipe pipe, OpenPipe());
  LS_CHECK_LE(bytes.size(), size_t{PIPE_BUF});  // fits without a reader
  if (::write(pipe.write.get(), bytes.data(), bytes.size()) != std::ssize(bytes)) {
    return absl::UnavailableError(absl::StrCat("pipe: ", std::strerror(errno)));
  }
  return std::move(pipe.read);
}

// "LOCKSTEP_JOB=..." that no other job has: processes keep it when they leave the job's session.
std::string MakeMark() {
  absl::BitGen random;
  return absl::StrCat(kMarkVariable, "=", absl::Hex(absl::Uniform<uint64_t>(random)));
}

bool HasInEnvironment(pid_t pid, absl::string_view mark) {
  std::ifstream environment(absl::StrCat("/proc/", pid, "/environ"));
  for (std::string variable; std::getline(environment, variable, '\0');) {
    if (variable == mark) return true;
  }
  return false;
}

// The children of this process that the job left behind: mpirun has been reaped, so they are
// orphans of it (see PR_SET_CHILD_SUBREAPER). A process that has ended, but was not waited for, has
// no environment any more; its session tells it.
std::vector<pid_t> Adopted(pid_t session, absl::string_view mark) {
  std::vector<pid_t> adopted = ChildrenOf(::getpid());
  std::erase_if(
      adopted, [&](pid_t pid) { return ::getsid(pid) != session && !HasInEnvironment(pid, mark); });
  return adopted;
}

}  // namespace

std::string JobExit::ToString() const {
  if (signal == 0) return absl::StrCat("exit code ", code);
  return absl::StrCat("signal ", signal, " (", ::strsignal(signal), ")");
}

std::string JobExit::Undying() const {
  if (survivors.empty()) return "";
  return absl::StrCat(survivors.size() == 1 ? "process " : "processes ",
                      absl::StrJoin(survivors, ", "), " on ", HostName(),
                      survivors.size() == 1 ? " does" : " do",
                      " not die of SIGKILL: a driver or storage hangs (see dmesg)");
}

JobSupervisor::JobSupervisor(pid_t pid, const Traits& traits, Fd output, OnLine on_line)
    : pid_(pid),
      traits_(traits),
      output_(std::move(output)),
      end_(OpenPidfd(pid)),
      events_(::epoll_create1(EPOLL_CLOEXEC)),
      on_line_(std::move(on_line)) {
  LS_CHECK(events_.valid()) << "epoll_create1: " << std::strerror(errno);
  for (const Fd* fd : {&output_, &end_}) {
    epoll_event readable = {.events = EPOLLIN, .data = {}};
    if (!fd->valid()) continue;
    LS_CHECK_EQ(::epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd->get(), &readable), 0);
  }
}

absl::StatusOr<std::unique_ptr<JobSupervisor>> JobSupervisor::Start(const JobSpec& spec,
                                                                    OnLine on_line) {
  LS_CHECK(!spec.command.empty());
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  // Where it is ignored, as a parent may leave it, nobody hears of ends.
  ::signal(SIGCHLD, SIG_DFL);
  ASSIGN_OR_RETURN(const Fd input, PipeHolding(spec.input));
  ASSIGN_OR_RETURN(Pipe output, OpenPipe());
  ASSIGN_OR_RETURN(Pipe failure, OpenPipe());  // carries errno out of the child; exec closes it
  const std::vector<char*> command = Pointers(spec.command);
  std::vector<std::string> variables = spec.environment;
  std::string mark = MakeMark();
  variables.push_back(mark);
  const std::vector<char*> environment = Pointers(variables);
  const PrivateNetwork network;
  const bool is_private = spec.private_network && network.IsPossible();
  const JobStart start = {::getpid(),
                          input.get(),
                          output.write.get(),
                          is_private ? &network : nullptr,
                          command.data(),
                          environment.data(),
                          spec.signal_without_launcher};
  const pid_t pid = ::fork();
  if (pid < 0) return absl::UnavailableError(absl::StrCat("fork: ", std::strerror(errno)));
  if (pid == 0) {
    BecomeJob(start);
    const int error = errno;
    [[maybe_unused]] const ssize_t written = ::write(failure.write.get(), &error, sizeof(error));
    _exit(127);
  }
  output.write.Close();
  failure.write.Close();
  int error = 0;
  if (::read(failure.read.get(), &error, sizeof(error)) == static_cast<ssize_t>(sizeof(error))) {
    ::waitpid(pid, nullptr, 0);
    return absl::UnavailableError(
        absl::StrCat("cannot run ", spec.command[0], ": ", std::strerror(error)));
  }
  ::fcntl(output.read.get(), F_SETFL, O_NONBLOCK);
  return std::unique_ptr<JobSupervisor>(new JobSupervisor(
      pid, {std::move(mark), spec.kill_patience}, std::move(output.read), std::move(on_line)));
}

JobSupervisor::~JobSupervisor() { Terminate(absl::ZeroDuration()); }

void JobSupervisor::FlushLine() {
  if (!partial_line_.empty()) on_line_(partial_line_);
  partial_line_.clear();
}

bool JobSupervisor::HasEnded() const {
  pollfd end = {end_.get(), POLLIN, 0};
  return ::poll(&end, 1, 0) > 0;
}

bool JobSupervisor::ReadOutput() {
  const bool had_ended = HasEnded();  // what it printed is there by now
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
  return had_ended || !output_.valid();
}

// Never waits: what hangs in a driver may not die of SIGKILL. Whom it found once it takes note of,
// as one that has ended, but is not reaped, can be told by nothing but its session.
bool JobSupervisor::KillAdopted() {
  for (const pid_t pid : Adopted(pid_, traits_.mark)) {
    if (std::find(left_.begin(), left_.end(), pid) == left_.end()) left_.push_back(pid);
  }
  if (left_.empty()) return true;
  for (const pid_t pid : left_) ::kill(pid, SIGKILL);
  std::erase_if(left_, [](pid_t pid) { return ::waitpid(pid, nullptr, WNOHANG) != 0; });
  return false;  // they may have had children, which are adopted now
}

bool JobSupervisor::TryReap() {
  if (exit_) return true;
  int status = 0;
  if (!status_ && ::waitpid(pid_, &status, WNOHANG) == pid_) {
    status_ = status;
    killed_by_ = std::min(killed_by_, SteadyNow() + traits_.kill_patience);
  }
  if (!status_ && SteadyNow() < killed_by_) return false;
  if (!KillAdopted() && SteadyNow() < killed_by_) return false;
  ReadOutput();
  FlushLine();
  exit_ = JobExit{0, SIGKILL};
  if (status_ && !WIFSIGNALED(*status_)) exit_ = JobExit{WEXITSTATUS(*status_), 0};
  if (status_ && WIFSIGNALED(*status_)) exit_->signal = WTERMSIG(*status_);
  exit_->survivors = left_;
  return true;
}

bool JobSupervisor::Wait(absl::Time deadline) {
  while (!TryReap()) {
    const absl::Duration left = deadline - SteadyNow();
    if (left <= absl::ZeroDuration() && !status_) return false;
    if (status_) {
      absl::SleepFor(kAdoptedReapInterval);
    } else {
      const absl::Duration sleep = std::min(left, killed_by_ - SteadyNow());
      WaitReadable({events_.get()}, end_.valid() ? sleep : std::min(sleep, kReapInterval));
    }
    ReadOutput();
  }
  return true;
}

JobExit JobSupervisor::Terminate(absl::Duration grace) {
  if (!exit_ && grace > absl::ZeroDuration()) {
    ::kill(pid_, SIGTERM);
    Wait(SteadyNow() + grace);
  }
  if (!exit_) {
    ::kill(-pid_, SIGKILL);
    killed_by_ = SteadyNow() + traits_.kill_patience;
    Wait(absl::InfiniteFuture());
  }
  return *exit_;
}

bool JobSupervisor::SurvivorsAreGone() {
  LS_CHECK(exit_.has_value());
  const bool are_gone = KillAdopted();
  exit_->survivors = left_;
  return are_gone;
}

}  // namespace lockstep
