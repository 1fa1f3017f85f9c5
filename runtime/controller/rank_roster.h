// The ranks of one epoch: who joined, what they said about themselves, how far each got. Event loop
// thread only.
//
// Every message is checked against the order of a rank's life (proto/lockstep/v1/worker.proto); an
// error means the sender breaks the protocol and the caller gives the replica up.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lockstep/v1/generation.pb.h"
#include "lockstep/v1/worker.pb.h"
#include "parallel/process_grid.h"
#include "runtime/controller/rank_port.h"

namespace lockstep {

// What the controller's steps and sequences may need of a rank. Each at least 1.
struct StepLimits {
  int64_t block_size = 1;  // of every rank, exactly
  int64_t max_num_seqs = 1;
  int64_t max_batched_tokens = 1;
  int64_t max_model_len = 1;
};

struct RosterIdentity {
  int replica = 0;
  ProcessGrid grid;
  uint64_t epoch = 0;
  std::string version;  // empty = not checked
  std::string model_fingerprint;
  std::string tokenizer_fingerprint = "";  // that ranks must have; empty: any
  StepLimits limits;
};

class RankRoster {
 public:
  RankRoster(RosterIdentity identity, absl::Time now);

  // Is it a rank of this model and layout, with room for these limits? Its epoch is not looked at.
  static absl::Status CheckHello(const v1::Hello& hello, const RosterIdentity& identity);
  // Of a Hello that passes. FAILED_PRECONDITION or ALREADY_EXISTS: this stream is refused, the
  // others stay.
  absl::Status Join(std::shared_ptr<RankPort> link, const v1::Hello& hello, absl::Time now);
  // The rank of this stream, or -1 when it never joined (or belongs to another epoch).
  int RankOf(const RankPort* link) const;

  absl::Status OnPreflight(int rank, const v1::Preflight& preflight) const;
  absl::Status OnLoading(int rank, const v1::Loading& loading, absl::Time now);
  absl::Status OnLoaded(int rank, const v1::Loaded& loaded, absl::Time now);
  absl::Status OnRehearsed(int rank, const v1::Rehearsed& rehearsed, absl::Time now);
  absl::Status OnReady(int rank, const v1::Ready& ready);
  absl::Status OnHeartbeat(int rank, const v1::Heartbeat& heartbeat, absl::Time now);
  // Only the last stage's tp_rank 0 reports results, and only once every rank is ready.
  absl::Status CheckMayReport(int rank) const;
  void Saw(int rank, absl::Time now);

  // "1 of 4 ranks joined, 0 loaded, epoch 1".
  std::string Progress() const;
  // Of any rank that has joined, as all have the same but for GPUs' names; null before the first.
  const v1::Hello* FirstHello() const;
  bool AllJoined() const { return num_joined_ == identity_.grid.world_size(); }
  absl::Time all_joined_at() const { return all_joined_at_; }  // the infinite future until then
  bool AllLoaded() const { return num_loaded_ == identity_.grid.world_size(); }
  // Once AllLoaded: some rank must rehearse, and so all must.
  bool MustRehearse() const;
  bool AllRehearsed() const { return num_rehearsing_ == 0; }
  bool AllReady() const { return num_ready_ == identity_.grid.world_size(); }
  // When the first rank joined; InfiniteFuture before, and once all have.
  absl::Time waiting_for_ranks_since() const;
  // Of those that have not joined: "1, 3", and the first, -1 when there is none.
  std::string MissingRanks() const;
  int FirstMissing() const;
  // Once AllRehearsed, if they must: the rank that the fewest KV blocks fit.
  int SmallestRank() const;
  // Likewise: that the fewest fit with nothing to spare.
  int TightestRank() const;
  // Copies of blocks that the host of each has room for.
  int64_t FewestHostBlocks() const;
  // That a rank can take back from the host while it reads its weights: at least one.
  int64_t FewestPrefetchedBlocks() const;
  const v1::Loaded& loaded(int rank) const { return ranks_[rank].loaded; }
  // Likewise.
  const v1::KvRoom& kv_room(int rank) const { return ranks_[rank].kv_room; }
  // Tells every rank to rehearse.
  void Rehearse();
  // Tells every rank to allocate its cache.
  void StartServing(int64_t num_kv_blocks, int64_t num_host_blocks);
  bool WereToldToStart() const { return were_told_to_start_; }

  void SendAll(const grpc::ByteBuffer& message);
  void ShutDownAll(const std::string& reason);
  void CloseAll(const grpc::Status& status);

  // "rank 3 (stage 1, tp_rank 1, pid 123 on node7), last operation: forward step 17".
  std::string Describe(int rank, absl::Time now) const;
  // The rank that the others wait for, as far as heartbeats tell.
  int FurthestBehind() const;
  // Of ranks that load or prepare: the one that is least far.
  int LeastLoaded() const;
  // The joined rank not heard of for the longest time; -1 when none joined.
  int LongestSilent() const;
  absl::Time last_seen(int rank) const { return ranks_[rank].last_seen; }
  // When some rank last showed that it had moved on: who computes or loads is busy, not stuck.
  absl::Time last_progress() const { return last_progress_; }
  v1::RankStatus StatusOf(int rank, absl::Time now) const;
  void FillStatus(absl::Time now, v1::GetStatusResponse* response) const;

 private:
  enum class Stage { kAbsent, kLoading, kRehearsing, kLoaded, kStarting, kReady };
  struct Rank {
    Stage stage = Stage::kAbsent;
    std::shared_ptr<RankPort> link;
    v1::Hello hello;
    v1::Loading loading;
    v1::Loaded loaded;
    v1::KvRoom kv_room;  // as said last
    v1::Ready ready;
    v1::Heartbeat heartbeat;
    absl::Time heartbeat_at;
    absl::Time last_seen;
  };
  absl::Status CheckStage(int rank, Stage expected, const char* message) const;

  RosterIdentity identity_;
  absl::Time last_progress_;
  std::vector<Rank> ranks_;
  absl::Time first_joined_at_ = absl::InfiniteFuture();
  absl::Time all_joined_at_ = absl::InfiniteFuture();
  int num_joined_ = 0;
  int num_loaded_ = 0;
  int num_rehearsing_ = 0;
  int num_ready_ = 0;
  bool were_told_to_start_ = false;
};

}  // namespace lockstep
