// One call's claim on its request's record in the journal: taken when the request is accepted,
// given up when the call ends. Thread-safe: the two may come in any order.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/status.h"
#include "lockstep/v1/journal.pb.h"
#include "runtime/controller/journal.h"

namespace lockstep {

class JournalEntry {
 public:
  // holder: the request's number. is_new: the record is to be written; else it is there.
  JournalEntry(std::shared_ptr<Journal> journal, v1::JournaledRequest request, uint64_t holder,
               bool is_new);

  // The request was accepted. True when a client could attach to it later.
  bool Take();
  // The call is over. The record ends soon after it when its client was told a final result; else
  // it waits for the client to come back.
  void GiveUp(const grpc::Status& status, bool told);

 private:
  const std::shared_ptr<Journal> journal_;  // shared: calls may end after the controller
  const v1::JournaledRequest request_;
  const uint64_t holder_;
  const bool is_new_;
  absl::Mutex mutex_;
  bool taken_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep
