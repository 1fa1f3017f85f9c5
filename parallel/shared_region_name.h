// The names of memory that ranks share (mpi_shared_region.h), in /dev/shm for the milliseconds
// until all have it: who cleans up after ranks that were killed in them knows it by this.
#pragma once

namespace lockstep {

inline constexpr char kSharedRegionPrefix[] = "lockstep-ranks-";

}  // namespace lockstep
