#include "launcher/calibration/other_programs.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>

namespace lockstep {
namespace {

// "cpu  user nice system idle iowait irq softirq steal ...": all but idle and iowait, with what the
// hypervisor gave to other machines.
double BusySeconds() {
  std::ifstream file("/proc/stat");
  std::string name;
  file >> name;
  double ticks = 0;
  for (int field = 0; field < 8; ++field) {
    double value = 0;
    if (!(file >> value)) return 0;
    if (field != 3 && field != 4) ticks += value;
  }
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double OwnSeconds() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage = {};
    getrusage(who, &usage);
    for (const timeval& part : {usage.ru_utime, usage.ru_stime}) {
      seconds += static_cast<double>(part.tv_sec) + static_cast<double>(part.tv_usec) * 1e-6;
    }
  }
  return seconds;
}

double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

OtherPrograms::OtherPrograms() : busy_(BusySeconds()), own_(OwnSeconds()), wall_(WallSeconds()) {}

double OtherPrograms::Share() const {
  const double processors = std::max(1U, std::thread::hardware_concurrency());
  const double others = BusySeconds() - busy_ - (OwnSeconds() - own_);
  return std::clamp(others / (processors * std::max(1e-3, WallSeconds() - wall_)), 0.0, 1.0);
}

}  // namespace lockstep
