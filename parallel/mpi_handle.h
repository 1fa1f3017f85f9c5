// Small RAII and error helpers around MPI, for the MPI bodies only (this header includes mpi.h).
#pragma once

#include <mpi.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lockstep {

// UNAVAILABLE with MPI's text unless code is MPI_SUCCESS.
inline absl::Status FromMpi(int code, const char* operation) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return absl::UnavailableError(
      absl::StrCat(operation, ": ", std::string(text, static_cast<size_t>(length))));
}

// An owned MPI communicator.
class MpiHandle {
 public:
  MpiHandle() = default;
  explicit MpiHandle(MPI_Comm comm) : comm_(comm) {}
  MpiHandle(MpiHandle&& other) noexcept : comm_(std::exchange(other.comm_, MPI_COMM_NULL)) {}
  MpiHandle& operator=(MpiHandle&& other) noexcept {
    std::swap(comm_, other.comm_);
    return *this;
  }
  ~MpiHandle() {
    if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
  }
  MPI_Comm get() const { return comm_; }
  // Not to be freed before MPI_Finalize.
  void Keep() { comm_ = MPI_COMM_NULL; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace lockstep
