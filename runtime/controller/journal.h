// The requests that clients may attach to again after their stream broke or the controller was
// restarted, kept in one file. Outputs are not in it: clients say what they have, and the rest is
// computed.
//
// A record is handed to the system (write) before its client hears of the acceptance, so it
// survives the death of this process; it is not forced to the disk, so the last ones may not
// survive the machine's. When more than half of the file is dead, a thread writes and syncs a
// successor, which takes its place with what was appended meanwhile: nobody waits for a disk, but
// where there is no room any more. Prompts lie in it in clear: its mode is 0600. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kernels/base/fd.h"
#include "lockstep/v1/journal.pb.h"
#include "runtime/controller/task_queue.h"

namespace lockstep {

struct JournalOptions {
  std::string path;  // made when it does not exist
  std::string model_fingerprint;
  int64_t max_bytes = 64 << 20;  // of live records; the file may have twice that
  int64_t max_requests = 4096;
  absl::Duration reattach_window = absl::Minutes(10);  // for a request without a stream
  // Told once, of the first record that could not be written, by whichever thread wrote it. Must
  // not block nor call back.
  std::function<void(const absl::Status&)> on_error;
};

class Journal {
 public:
  // Requests found in the file have no stream from `now` on. INVALID_ARGUMENT: not a journal;
  // FAILED_PRECONDITION: of another model, or another process holds it; UNAVAILABLE: what the
  // system says. Errors name the file.
  static absl::StatusOr<std::unique_ptr<Journal>> Open(JournalOptions options, absl::Time now);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // What Open found: requests that did not finish.
  int num_recovered() const { return num_recovered_; }
  int64_t num_bytes_cut() const { return num_bytes_cut_; }  // a record that was being written

  // A new request, whose stream is `holder` (> 0). False when it could not be recorded: full of
  // requests that have streams, or the disk is (error() tells). A second one of the same name
  // replaces the first.
  bool Accept(const v1::JournaledRequest& request, uint64_t holder, absl::Time now);
  // The request has a stream again. False when it is not there any more.
  bool Hold(const std::string& request_id, uint64_t holder);
  // The stream of that holder broke: the window begins. Ignored when another one holds it.
  void Release(const std::string& request_id, uint64_t holder, absl::Time now);
  // The request finished, as far as its stream knows: a client whose connection is silently dead,
  // or was when this process died, has not heard it, and may attach for a short while. Ignored when
  // another one holds it.
  void Finish(const std::string& request_id, uint64_t holder, absl::Time now);
  // Nobody will attach any more; of that holder alone, or (0) of any.
  void End(const std::string& request_id, uint64_t holder);
  std::optional<v1::JournaledRequest> Find(const std::string& request_id, absl::Time now);

  int64_t num_requests() const;
  int64_t num_file_bytes() const;
  absl::Status error()
      const;  // why the last record was not written; OK when it was. Waits for none

 private:
  struct Entry {
    v1::JournaledRequest request;
    int64_t num_bytes = 0;                           // of its frame
    uint64_t holder = 0;                             // 0 = it has no stream
    absl::Time expires_at = absl::InfiniteFuture();  // without one
    bool is_finished = false;                        // as the file says, too
  };
  using Entries = absl::flat_hash_map<std::string, Entry>;
  struct Successor {
    std::string path;
    Fd file;
    int64_t num_bytes = 0;
  };
  using Released = std::set<std::pair<absl::Time, std::string>>;  // by when they expire

  Journal(JournalOptions options, int directory);
  absl::Status Load(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Apply(const v1::JournalRecord& record, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration FinishedWindow() const;
  bool MakeRoom(int64_t num_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LetGo(Entries::iterator entry, absl::Time expires_at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Released& ReleasedWith(const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropExpired(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetFinished() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Append(const v1::JournalRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status MakeShort(int64_t num_more_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t MaxFileBytes() const;
  absl::Status Write(const std::string& frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetError(const absl::Status& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Empty() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Start() const;
  std::string Alive() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Successor> WriteSuccessor(const char* suffix, const std::string& bytes) const;
  absl::Status Replace(Successor successor, int64_t from) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Rewrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RewriteBeside() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status SystemError(const char* what) const;

  const JournalOptions options_;
  const int directory_;  // of the file, to sync renames
  int num_recovered_ = 0;
  int64_t num_bytes_cut_ = 0;

  mutable absl::Mutex mutex_;
  Fd file_ ABSL_GUARDED_BY(mutex_);
  int64_t file_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t live_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool has_told_error_ ABSL_GUARDED_BY(mutex_) = false;
  Entries entries_ ABSL_GUARDED_BY(mutex_);
  // Those without a stream: that wait for their clients, or have finished.
  Released waiting_ ABSL_GUARDED_BY(mutex_);
  Released finished_ ABSL_GUARDED_BY(mutex_);
  int64_t rewrite_from_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes of the file: a rewrite failed
  uint64_t num_files_ ABSL_GUARDED_BY(mutex_) = 0;    // that began: replaced, or emptied
  bool is_rewriting_ ABSL_GUARDED_BY(mutex_) = false;
  mutable absl::Mutex error_mutex_;  // after mutex_; never held for long
  absl::Status error_ ABSL_GUARDED_BY(error_mutex_);
  TaskThread rewriter_;
};

}  // namespace lockstep
