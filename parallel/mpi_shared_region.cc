#include "parallel/mpi_shared_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <random>
#include <utility>

#include "parallel/mpi_handle.h"
#include "parallel/shared_region_name.h"

namespace lockstep {
namespace {

constexpr int kNameBytes = 64;

bool AllOnOneHost(MPI_Comm comm) {
  MPI_Comm host_comm = MPI_COMM_NULL;
  MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host_comm);
  const MpiHandle host(host_comm);
  int num_here = 0, num_all = 0;
  MPI_Comm_size(host.get(), &num_here);
  MPI_Comm_size(comm, &num_all);
  int is_one = num_here == num_all ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &is_one, 1, MPI_INT, MPI_MIN, comm);
  return is_one != 0;
}

// Creates the memory (rank 0) or opens it. posix_fallocate, so that a full /dev/shm is an error
// now, not a signal later.
void* MapNamed(const char* name, bool creates, int64_t bytes) {
  const int flags = creates ? O_RDWR | O_CREAT | O_EXCL : O_RDWR;
  const int fd = shm_open(name, flags, 0600);
  if (fd < 0) return nullptr;
  void* data = MAP_FAILED;
  if (!creates || posix_fallocate(fd, 0, bytes) == 0) {
    data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  close(fd);
  return data == MAP_FAILED ? nullptr : data;
}

}  // namespace

std::optional<MpiSharedRegion> MpiSharedRegion::Map(MPI_Comm comm, int64_t bytes) {
  if (!AllOnOneHost(comm)) return std::nullopt;
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  char name[kNameBytes] = {};
  void* data = nullptr;
  if (rank == 0) {
    std::random_device random;
    std::snprintf(name, sizeof(name), "/%s%08x%08x%08x", kSharedRegionPrefix, random(), random(),
                  random());
    data = MapNamed(name, /*creates=*/true, bytes);
  }
  MPI_Bcast(name, kNameBytes, MPI_CHAR, 0, comm);  // also: not before it has been created
  if (rank != 0) data = MapNamed(name, /*creates=*/false, bytes);
  int all_mapped = data != nullptr ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &all_mapped, 1, MPI_INT, MPI_MIN, comm);
  if (rank == 0) shm_unlink(name);
  if (all_mapped == 0) {
    if (data != nullptr) munmap(data, static_cast<size_t>(bytes));
    return std::nullopt;
  }
  return MpiSharedRegion(data, bytes);
}

MpiSharedRegion::MpiSharedRegion(MpiSharedRegion&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

MpiSharedRegion& MpiSharedRegion::operator=(MpiSharedRegion&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MpiSharedRegion::~MpiSharedRegion() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

}  // namespace lockstep
