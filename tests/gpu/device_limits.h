// What this GPU can do at best, measured: the denominators of the benchmark's shares.
#pragma once

namespace lockstep::bench {

struct DeviceLimits {
  double read_bytes_per_s = 0;  // one kernel that reads 4 GiB
  double copy_bytes_per_s = 0;  // device to device, bytes read and written
  // One copy of 256 MiB between the device and pinned memory, with nothing the other way.
  double to_host_bytes_per_s = 0;
  double to_device_bytes_per_s = 0;
  // Of large products of random numbers by cuBLASLt, one after the other for half a second: as long
  // as a GPU takes to come down to the clocks that its power allows, which a prefill runs at, too.
  // A kernel that is measured for a moment may exceed it.
  double bf16_flops_per_s = 0;
  double fp8_flops_per_s = 0;         // likewise; 0 where there are no such products
  double brief_bf16_flops_per_s = 0;  // the fastest by itself
  double brief_fp8_flops_per_s = 0;
};

// Bandwidths are the best of several. Ends the process on errors.
DeviceLimits MeasureDeviceLimits(int device);

}  // namespace lockstep::bench
