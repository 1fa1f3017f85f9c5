#include "runtime/controller/text_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpc/grpc.h"
#include "runtime/controller/wire.h"

namespace lockstep {

TextCall::~TextCall() { unread_->num_bytes -= num_bytes_; }

void TextCall::Answer(const absl::StatusOr<grpc::ByteBuffer>& answer, grpc::ByteBuffer* response) {
  absl::Status status = answer.status();
  if (answer.ok()) {
    num_bytes_ = static_cast<int64_t>(answer->Length());
    const int64_t num_unread = unread_->num_bytes += num_bytes_;
    if (num_bytes_ > UnreadAnswers::kShortBytes && num_unread > UnreadAnswers::kMaxBytes) {
      unread_->num_bytes -= std::exchange(num_bytes_, 0);
      status = absl::ResourceExhaustedError(
          absl::StrCat("more than ", UnreadAnswers::kMaxBytes,
                       " bytes of answers are unread by their clients: retry later"));
    } else {
      *response = *answer;
    }
  }
  alarm_ = std::make_unique<grpc::Alarm>();
  alarm_->Set(absl::ToChronoTime(absl::Now() + patience_),
              [watched = watched_, call = context_.c_call()](bool rang) {
                if (!rang) return;
                {
                  absl::MutexLock lock(&watched->mutex);
                  if (watched->is_done) return;
                  grpc_call_ref(call);
                }
                grpc_call_cancel_with_status(call, GRPC_STATUS_RESOURCE_EXHAUSTED,
                                             "the client does not read its answer", nullptr);
                grpc_call_unref(call);
              });
  Finish(ToGrpcStatus(status));
}

void TextCall::OnDone() {
  {
    absl::MutexLock lock(&watched_->mutex);
    watched_->is_done = true;
  }
  delete this;
}

}  // namespace lockstep
