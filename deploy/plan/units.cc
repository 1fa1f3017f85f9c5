#include "deploy/plan/units.h"

#include "absl/strings/str_format.h"

namespace lockstep::plan {

std::string BinarySize(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value >= 0x1p30) return absl::StrFormat("%.1f GiB", value / 0x1p30);
  if (value >= 0x1p20) return absl::StrFormat("%.1f MiB", value / 0x1p20);
  return value >= 0x1p10 ? absl::StrFormat("%.1f KiB", value / 0x1p10)
                         : absl::StrFormat("%d bytes", bytes);
}

std::string DecimalSize(double bytes) {
  if (bytes >= 1e9) return absl::StrFormat("%.1f GB", bytes / 1e9);
  return bytes >= 1e6 ? absl::StrFormat("%.1f MB", bytes / 1e6)
                      : absl::StrFormat("%.1f kB", bytes / 1e3);
}

}  // namespace lockstep::plan
