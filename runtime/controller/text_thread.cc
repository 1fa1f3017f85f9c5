#include "runtime/controller/text_thread.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

absl::Status ShuttingDown() { return absl::UnavailableError("the server is shutting down"); }

}  // namespace

absl::Status TextThread::CheckRoom(int64_t num_bytes) {
  const int64_t num_before = num_waiting_bytes_.fetch_add(num_bytes);
  if (num_before + num_bytes <= kMaxWaitingBytes) return absl::OkStatus();
  num_waiting_bytes_ -= num_bytes;
  return absl::ResourceExhaustedError(
      absl::StrCat(num_before, " bytes of other requests' texts wait for their turn, and with ",
                   num_bytes, " more than ", kMaxWaitingBytes, " would: retry later"));
}

void TextThread::Run(int64_t num_bytes, Work work) {
  if (refuses_) return work(ShuttingDown());
  if (num_bytes <= kMaxInlineBytes) return work(absl::OkStatus());
  if (const absl::Status room = CheckRoom(num_bytes); !room.ok()) return work(room);
  thread_.Push([this, num_bytes, work = std::move(work)]() mutable {
    work(refuses_ ? ShuttingDown() : absl::OkStatus());
    num_waiting_bytes_ -= num_bytes;
  });
}

}  // namespace lockstep
