// Which start of which machine this is. Any thread.
#pragma once

#include <fstream>
#include <string>

namespace lockstep {

// The same for all processes of a machine until it starts again, another for each other machine.
// Empty where Linux does not tell (random(4), boot_id).
inline std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

}  // namespace lockstep
