// Units that the planner's pages speak in.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::plan {

inline constexpr double kMicro = 1e-6;  // s of a microsecond
inline constexpr double kMilli = 1e3;   // ms of a second
inline constexpr double kGiga = 1e9;
inline constexpr double kP95Deviations = 1.645;  // of a normal distribution, above its mean
inline double GiB(int64_t bytes) { return static_cast<double>(bytes) / 0x1p30; }
// In the largest unit that leaves a number of at least one: "1.2 GiB", "320.0 KiB"; "410.1 GB".
std::string BinarySize(int64_t bytes);
std::string DecimalSize(double bytes);

}  // namespace lockstep::plan
