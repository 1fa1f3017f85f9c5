#include "kernels/base/this_program.h"

#include <filesystem>

namespace lockstep {

absl::StatusOr<std::string> ThisProgram() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::UnavailableError("cannot find this program in /proc: is it mounted?");
  return program.string();
}

}  // namespace lockstep
