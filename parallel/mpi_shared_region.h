// Memory that all ranks of an MPI group on one host have mapped.
//
// POSIX shared memory rather than an MPI window: freeing a window is a collective, which hangs when
// a peer is gone. The name is unlinked before anybody uses the memory, so nothing stays behind
// when a rank is killed; before that, until the next launch (launcher/job/runtime_dir.h).
#pragma once

#include <mpi.h>

#include <cstdint>
#include <optional>

namespace lockstep {

class MpiSharedRegion {
 public:
  // Collective over comm. Nothing when its ranks are on several hosts or any of them cannot map the
  // memory: the same answer on every rank. Zero at first.
  static std::optional<MpiSharedRegion> Map(MPI_Comm comm, int64_t bytes);
  ~MpiSharedRegion();
  MpiSharedRegion(MpiSharedRegion&& other) noexcept;
  MpiSharedRegion& operator=(MpiSharedRegion&& other) noexcept;

  void* data() const { return data_; }

 private:
  MpiSharedRegion(void* data, int64_t bytes) : data_(data), bytes_(bytes) {}
  void* data_;
  int64_t bytes_;
};

}  // namespace lockstep
