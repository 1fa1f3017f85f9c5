#include "runtime/controller/health_service.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "lockstep/v1/generation.grpc.pb.h"
#include "runtime/controller/wire.h"

namespace lockstep {
namespace {

using ServingStatus = health::HealthCheckResponse::ServingStatus;

bool IsKnownService(const std::string& service) {
  return service.empty() || service == v1::Generation::service_full_name();
}

grpc::ByteBuffer Response(ServingStatus status) {
  health::HealthCheckResponse response;
  response.set_status(status);
  return SerializeMessage(response);
}

}  // namespace

struct HealthService::State {
  absl::Mutex mutex;
  bool serving ABSL_GUARDED_BY(mutex) = false;
  bool closed ABSL_GUARDED_BY(mutex) = false;
  absl::flat_hash_set<Watcher*> watchers ABSL_GUARDED_BY(mutex);

  ServingStatus Status() ABSL_SHARED_LOCKS_REQUIRED(mutex) {
    return serving ? health::HealthCheckResponse::SERVING
                   : health::HealthCheckResponse::NOT_SERVING;
  }
};

// One Watch call. A slow watcher skips states: only the latest is ever waiting.
class HealthService::Watcher final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  Watcher(std::shared_ptr<State> state, bool known) : state_(std::move(state)), known_(known) {
    absl::MutexLock lock(&state_->mutex);
    state_->watchers.insert(this);
    if (state_->closed) {
      CancelLocked();
    } else {
      AdvanceLocked();
    }
  }

  void AdvanceLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
    const ServingStatus now =
        known_ ? state_->Status() : health::HealthCheckResponse::SERVICE_UNKNOWN;
    if (writing_ || cancelled_ || told_ == now) return;
    told_ = now;
    buffer_ = Response(now);
    writing_ = true;
    StartWrite(&buffer_);
  }

  void EndLocked(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
    if (finished_ || writing_) return;
    finished_ = true;
    Finish(status);
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&state_->mutex);
    writing_ = false;
    if (!ok) cancelled_ = true;
    if (cancelled_) {
      EndLocked(grpc::Status::CANCELLED);
    } else {
      AdvanceLocked();
    }
  }

  void CancelLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
    cancelled_ = true;
    EndLocked(grpc::Status::CANCELLED);
  }

  void OnCancel() override {
    absl::MutexLock lock(&state_->mutex);
    CancelLocked();
  }

  void OnDone() override {
    {
      absl::MutexLock lock(&state_->mutex);
      state_->watchers.erase(this);
    }
    delete this;
  }

 private:
  const std::shared_ptr<State> state_;
  const bool known_;
  ServingStatus told_ = health::HealthCheckResponse::UNKNOWN;
  grpc::ByteBuffer buffer_;
  bool writing_ = false;
  bool cancelled_ = false;
  bool finished_ = false;
};

HealthService::HealthService() : state_(std::make_shared<State>()) {}
HealthService::~HealthService() = default;

void HealthService::SetServing(bool serving) {
  absl::MutexLock lock(&state_->mutex);
  state_->serving = serving;
  for (Watcher* watcher : state_->watchers) watcher->AdvanceLocked();
}

void HealthService::EndWatches() {
  absl::MutexLock lock(&state_->mutex);
  state_->closed = true;
  for (Watcher* watcher : state_->watchers) watcher->CancelLocked();
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* request,
                                               grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  health::HealthCheckRequest parsed;
  if (absl::Status status = ParseMessage(*request, parsed); !status.ok()) {
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }
  if (!IsKnownService(parsed.service())) {
    reactor->Finish(grpc::Status(grpc::StatusCode::NOT_FOUND,
                                 absl::StrCat("unknown service \"", parsed.service(), "\"")));
    return reactor;
  }
  {
    absl::MutexLock lock(&state_->mutex);
    *response = Response(state_->Status());
  }
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* HealthService::Watch(grpc::CallbackServerContext*,
                                                                 const grpc::ByteBuffer* request) {
  health::HealthCheckRequest parsed;
  const bool known = ParseMessage(*request, parsed).ok() && IsKnownService(parsed.service());
  return new Watcher(state_, known);
}

}  // namespace lockstep
