#include "runtime/controller/rejection_counts.h"

namespace lockstep {

void RejectionCounts::Count(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kCancelled:  // the client left
      return;
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kDeadlineExceeded:  // before it was accepted
      num_overload_.fetch_add(1, std::memory_order_relaxed);
      return;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDataLoss:
      num_unavailable_.fetch_add(1, std::memory_order_relaxed);
      return;
    default:
      num_invalid_.fetch_add(1, std::memory_order_relaxed);
  }
}

void RejectionCounts::AddTo(v1::GetStatusResponse& status) const {
  v1::Rejections& rejections = *status.mutable_rejections();
  rejections.set_invalid(num_invalid_.load(std::memory_order_relaxed));
  rejections.set_overload(num_overload_.load(std::memory_order_relaxed));
  rejections.set_unavailable(num_unavailable_.load(std::memory_order_relaxed));
  status.set_requests_rejected(rejections.invalid() + rejections.overload() +
                               rejections.unavailable());
}

}  // namespace lockstep
