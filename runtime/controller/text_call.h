// A unary call whose answer may have to wait for its turn, and may be long.
//
// Long answers that clients have not read yet are bounded together, in memory and in time, as
// streams are (EventWriter). gRPC's once it has been returned to it; until Answer others may use
// it, too.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"

namespace lockstep {

// What such calls share.
struct UnreadAnswers {
  static constexpr int64_t kMaxBytes = int64_t{256} << 20;
  static constexpr int64_t kShortBytes = 4096;  // answered whatever is unread
  std::atomic<int64_t> num_bytes = 0;
};

class TextCall final : public grpc::ServerUnaryReactor {
 public:
  // context: the call's. patience: how long an answer may stay unread.
  TextCall(grpc::CallbackServerContext& context, std::shared_ptr<UnreadAnswers> unread,
           absl::Duration patience)
      : context_(context), unread_(std::move(unread)), patience_(patience) {}
  ~TextCall() override;

  // Once. response: where gRPC takes it from.
  void Answer(const absl::StatusOr<grpc::ByteBuffer>& answer, grpc::ByteBuffer* response);
  bool is_cancelled() const { return is_cancelled_; }

  void OnCancel() override { is_cancelled_ = true; }
  void OnDone() override;

 private:
  // The alarm may ring when the call is gone.
  struct Watched {
    absl::Mutex mutex;
    bool is_done ABSL_GUARDED_BY(mutex) = false;
  };

  grpc::CallbackServerContext& context_;
  const std::shared_ptr<UnreadAnswers> unread_;
  const absl::Duration patience_;
  int64_t num_bytes_ = 0;
  std::atomic<bool> is_cancelled_ = false;
  const std::shared_ptr<Watched> watched_ = std::make_shared<Watched>();
  std::unique_ptr<grpc::Alarm> alarm_;
};

}  // namespace lockstep
