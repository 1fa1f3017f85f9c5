// What this GPU can do at best, measured: the denominators of the benchmark's shares.
#pragma once

namespace lockstep::bench {

struct DeviceLimits {
  double read_bytes_per_s = 0;  // one kernel that reads 4 GiB
  double copy_bytes_per_s = 0;  // device to device, bytes read and written
  double bf16_flops_per_s = 0;  // the best of large products of random numbers, by cuBLASLt
  double fp8_flops_per_s = 0;   // likewise; 0 where there are no such products
};

// The best of several each. Ends the process on errors.
DeviceLimits MeasureDeviceLimits(int device);

}  // namespace lockstep::bench
