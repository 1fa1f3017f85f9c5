// Preloaded into a rank: SIGUSR2 makes it exit as a program does that gives up, without a word to
// anybody. (A rank's own way out tells the controller and its peers first.)
#include <signal.h>
#include <unistd.h>

namespace {

void Exit(int) { _exit(7); }

__attribute__((constructor)) void Install() {
  struct sigaction action = {};
  action.sa_handler = &Exit;
  ::sigaction(SIGUSR2, &action, nullptr);
}

}  // namespace
