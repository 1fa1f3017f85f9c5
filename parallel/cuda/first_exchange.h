// What a new group exchanges once by each way that its numbers will go: known ones, which differ by
// rank and place, so that what does not arrive, or arrives changed, is seen.
//
// An IOMMU or PCIe's access control services between GPUs may send what they write to each other's
// memory elsewhere: writes are lost or hang, without an error. Source: NCCL User Guide,
// "Troubleshooting", "PCI Access Control Services (ACS)".
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "parallel/communicator.h"
#include "parallel/cuda/device_array.h"

namespace lockstep::cuda {

// What to do where ranks live and their exchanges come to nothing; follows a message.
inline constexpr char kBrokenPeerAccess[] =
    "; does an IOMMU or PCIe ACS stand between the GPUs? Turn it off, or set NCCL_P2P_DISABLE=1";

class FirstExchange {
 public:
  struct Place {
    int rank = 0;
    int size = 1;
    cudaStream_t stream = nullptr;
    std::function<absl::Status()> meet;  // until all ranks' work in the stream is done
  };
  using Issue = absl::FunctionRef<absl::Status()>;

  // Room for num_floats on the current device.
  static absl::StatusOr<FirstExchange> Create(Place place, int64_t num_floats);

  float* data() const { return data_.get(); }
  // Each gives `data` this rank's numbers, of which the first are of use, and looks at what the
  // call that is issued makes of them there. Errors are the call's and meet's: those of numbers are
  // kept, as other ranks go on.
  absl::Status TrySum(int64_t count, Issue issue);      // of data[count], to the same place
  absl::Status TryScatter(int64_t share, Issue issue);  // of data[size, share], to this rank's row
  absl::Status TryGather(int64_t share, Issue issue);   // of this rank's row to data[size, share]
  absl::Status TryAllToAll(Issue issue);  // of data[size], a number to each rank, to what follows
  absl::Status TryNext(Issue issue);      // of data[0] to the next rank's data[1]

  // Collective over `host`: FAILED_PRECONDITION on all ranks when one of them found others.
  absl::Status Agreed(Communicator& host) const;

 private:
  struct Result {
    const char* name;
    int64_t bytes;
    int64_t given;  // so many of data's numbers are this rank's before
    int64_t begin;  // of those that are looked at after, and their end
    int64_t end;
  };
  FirstExchange(Place place, DeviceArray<float> data, int64_t num_floats);
  absl::Status Try(const Result& result, Issue issue, absl::FunctionRef<float(int64_t)> expected);
  float Sum(int64_t i) const { return sums_[static_cast<size_t>(i) % sums_.size()]; }

  Place place_;
  std::vector<float> mine_;   // this rank's numbers
  std::vector<float> found_;  // what became of them
  std::vector<float> sums_;   // over ranks, of one period
  DeviceArray<float> data_;   // last: to free it awaits copies of the others
  absl::Status verdict_;
};

}  // namespace lockstep::cuda
