// What a test may ask of the emulated CUDA runtime.
//
// Every rule broken by a kernel or a call (a barrier not reached by all, a shuffle with a lane that
// is gone, a copy out of bounds, a wait that can never end) is a failure: it is printed, the device
// refuses further work with cudaErrorLaunchFailure as a GPU does after one, and unless a test takes
// the failure the process ends with status 1.
//
// Whole programs are tried under other conditions by two variables, read once:
// LOCKSTEP_CUDA_THREAD_ORDER (as SetThreadOrder) and LOCKSTEP_CUDA_IPC=0 (as Device::has_ipc). With
// LOCKSTEP_CUDA_COMPILED kernels are run as nvcc has compiled them (compiled/kernels.h).
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::cuda_emulation {

// When work issued to a stream is done.
enum class Issue {
  kDeferred,   // as late as possible: when somebody waits for it, so that a missing wait shows
  kImmediate,  // when it is issued, as far as it can go without other streams
};
void SetIssue(Issue issue);

// In which order the threads of a block, and the blocks of a grid, take turns: 0 ascending, 1
// descending, others a random one drawn from the seed, in which, if it is odd, who has just been
// woken mostly goes first and bulk copies arrive at once. A result that depends on it is a race.
void SetThreadOrder(uint64_t seed);

// The devices pretended: all alike. Before anything is allocated on them. For programs that do not
// know of the emulation LOCKSTEP_CUDA_DEVICES="COUNT NAME" in the environment sets the number and
// the name, LOCKSTEP_CUDA_FIRST_DEVICE the first, LOCKSTEP_CUDA_CAPABILITY="MAJOR.MINOR" what they
// compute, LOCKSTEP_CUDA_DRIVER="MAJOR.MINOR" the CUDA that the driver is for,
// LOCKSTEP_CUDA_MEMORY_GIB the memory, LOCKSTEP_CUDA_ECC_AFTER ecc_error_after_kernels.
struct Device {
  int num_devices = 1;
  int first_device = 0;  // of the machine's: the others are not seen by this process
  std::string name = "Emulated GPU";
  int num_multiprocessors = 132;
  int compute_major = 9;
  int compute_minor = 0;
  bool driver_compiles_ptx = true;  // of kernels that were compiled for older devices
  int driver_version = 13000;       // as CUDA writes 13.0, which its runtime asks for
  int64_t memory_bytes = int64_t{4} << 30;
  bool has_fp8_scale_vectors = true;  // cuBLASLt's scales by row and column
  // cuBLASLt finds nothing else where the algorithm that needs columns by sixteens can be used.
  bool prefers_whole_tiles = false;
  bool checks_algorithms = true;  // else it says of all that they can be used
  int algorithms_of_a_kind = 1;   // that it finds, one like another
  // What gives a row of a product other bits in products of other sizes, or where else it lies. The
  // heuristic's first algorithm of up to 64 columns adds up as none of more does (K in slices); its
  // first one of multiples of 16 adds half of the columns in another order than the others;
  // products of so many columns and more add their last quarter so, by whatever algorithm (0: none
  // do).
  bool slices_few_columns = false;
  bool adds_by_place = false;
  int64_t wide_columns = 0;
  double product_seconds = 0;            // that each of cuBLASLt's products takes at least
  int64_t graph_bytes = 0;               // device memory that an instantiated graph takes
  int64_t communicator_bytes = 3 << 20;  // and one of NCCL's, until it is destroyed
  int l2_bytes = 1 << 16;                // small, as who wants it emptied reads more than that
  bool records_overlaps = true;          // else recordings refuse kernels that may overlap
  bool reach_each_other = true;          // peer access
  // From so many kernels on, as soon as somebody waits, every call fails as after an uncorrectable
  // error of memory; 0: none.
  int64_t ecc_error_after_kernels = 0;
  bool has_ipc = true;  // memory of one process in another
  // "all-reduce", "reduce-scatter", "all-gather" or "receive": by which NCCL gets zeros instead of
  // what comes from others, on a group's last rank; and of which size, "all-reduce of 64 bytes".
  std::string nccl_loses = "";
  // Does the driver encode them? Without, backends do not try wgmma when they start, which takes
  // minutes on a device of this size.
  bool has_tensor_maps = false;
};
void SetDevice(const Device& device);
Device PretendedDevice();

// The first failure since it was last taken, or "". Work that was waiting is dropped and the device
// works again; memory stays.
std::string TakeFailure();

// How long a wait may go without any work advancing before it is a failure. 30 s unless set.
void SetPatience(double seconds);

int64_t AllocatedBytes();            // device memory of all devices
int64_t NumKernelsRun();             // since the process began
int64_t NumKernelsBegunEarly();      // of them, while those before them were still to run
int64_t NumPrefetchedBytes();        // into the second-level cache
int64_t NumProducts();               // of cuBLASLt's
int64_t NumFastProducts();           // of them, with fast accumulation of e4m3
int64_t NumProductsAddedInOutput();  // by split-K whose parts are added in D's type
int64_t NumWorkInStreams();          // issued and not done yet

}  // namespace lockstep::cuda_emulation
