#include "runtime/controller/journal_entry.h"

#include <utility>

#include "kernels/base/steady_clock.h"

namespace lockstep {

JournalEntry::JournalEntry(std::shared_ptr<Journal> journal, v1::JournaledRequest request,
                           uint64_t holder, bool is_new)
    : journal_(std::move(journal)),
      request_(std::move(request)),
      holder_(holder),
      is_new_(is_new) {}

bool JournalEntry::Take() {
  absl::MutexLock lock(&mutex_);
  if (over_) return false;  // the client left before it knew of the acceptance
  taken_ = is_new_ ? journal_->Accept(request_, holder_, SteadyNow())
                   : journal_->Hold(request_.request().request_id(), holder_);
  return taken_;
}

void JournalEntry::GiveUp(const grpc::Status& status, bool told) {
  absl::MutexLock lock(&mutex_);
  over_ = true;
  if (!taken_) return;
  const std::string& request_id = request_.request().request_id();
  if (told && status.ok()) {
    journal_->Finish(request_id, holder_, SteadyNow());
  } else if (told && (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
                      status.error_code() == grpc::StatusCode::INTERNAL)) {
    journal_->End(request_id, holder_);
  } else {
    // The server stopping, another client attaching, or too much left unread end the call alone.
    journal_->Release(request_id, holder_, SteadyNow());
  }
}

}  // namespace lockstep
