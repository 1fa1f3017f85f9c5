// A rank: dial the controller, load the shard, run plans until told to stop
// (proto/lockstep/v1/worker.proto), and, where that is wanted, begin anew with the weights in
// memory when the controller is lost.
//
// Then no rank goes on alone: each ends its stream, aborts the step in progress and forgets its
// slots; when all have met again (parallel/rendezvous.h), they dial again under a higher epoch.
//
// RunWorker occupies the calling thread: it loads, then becomes the step loop, so a process that
// initialised MPI with MPI_THREAD_FUNNELED calls it from its main thread. Heartbeats and replies
// leave from a thread of their own that the step loop cannot block. Plans are translated by
// runtime/worker/plan_codec.h (library lockstep_plan_codec, used by the controller too);
// runtime/worker/link_limits.h holds the channel settings both ends share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/base/notice.h"
#include "model/llama/llama_stage.h"
#include "parallel/process_grid.h"
#include "parallel/rendezvous.h"
#include "runtime/security/tls.h"
#include "runtime/worker/rank_device.h"

namespace lockstep {

struct WorkerOptions {
  std::string controller_address;  // "unix:/path" or "host:port"
  std::string secret;              // of this launch; never logged
  DialSecurity dial;               // encryption of the stream to a host:port
  uint64_t epoch = 0;  // of the first life; 0: the wall clock in milliseconds. Each next is higher.
  int replica = 0;
  ProcessGrid grid = *ProcessGrid::Create(1, 1);
  int rank = 0;
  std::string host;  // as shown to operators
  int node = 0;      // ranks with the same number share memory
  // Check memory and links together before the first load (runtime/worker/preflight.h).
  bool preflight = false;
  bool allow_tp_across_nodes = false;
  std::string version;
  std::filesystem::path model;
  StageOptions
      stage;  // stage.limits: the largest step, sequence count and length, and the block size
  DeviceOptions device;
  // The KV cache of this rank: so many blocks, or as many as fit into kv_cache_bytes; of neither
  // said, 1 GiB at most, or all that DeviceOptions leaves of a GPU.
  std::optional<int64_t> num_kv_blocks;
  std::optional<int64_t> kv_cache_bytes;
  // Of the host's memory, for copies of its blocks (engine::EngineConfig::num_host_blocks).
  int64_t kv_offload_bytes = 0;
  bool asks_for_kv_cache() const { return num_kv_blocks.has_value() || kv_cache_bytes.has_value(); }

  // How long ranks that start wait for each other: some initialize GPUs and read from cold storage.
  // A launcher that watches them ends the job sooner (its `--preflight-seconds`).
  absl::Duration start_timeout = absl::Minutes(5);
  absl::Duration dial_timeout = absl::Seconds(30);  // the controller may start after its ranks
  // How long a rank looks for a controller that it has lost; 0: losing the stream ends the rank.
  absl::Duration rejoin_window = absl::ZeroDuration();
  bool rejoins() const { return rejoin_window > absl::ZeroDuration(); }
  // How long ranks that do not load wait for each other then.
  absl::Duration gather_timeout = absl::Seconds(30);
  // What operators may want to read about that; one line. May be null.
  Notice on_notice;

  // Called from another thread when the controller is gone (or told this rank to stop) and the step
  // loop has not returned within stop_grace (within gather_timeout if it rejoins): it waits for a
  // peer that will never answer. The process should end at once (the launcher aborts the MPI job).
  // Null: RunWorker keeps waiting.
  absl::Duration stop_grace = absl::Seconds(2);
  std::function<void(const absl::Status&)> on_stuck;
};

// Returns OK after the controller's Shutdown (plans received before it are completed), UNAVAILABLE
// when the controller cannot be reached or the stream is lost for good, FAILED_PRECONDITION when
// the controller refuses this rank (ranks that have loaded: for all of rejoin_window) or ranks
// differ where they must not (runtime/worker/rank_identity.h), ALREADY_EXISTS when other ranks have
// its place, DEADLINE_EXCEEDED naming the ranks
// that did not meet the others, else what went wrong here (reported to the controller as Failure
// first). After an error peers may be waiting for this rank: the caller ends the whole job.
absl::Status RunWorker(const WorkerOptions& options, Rendezvous& rendezvous);

}  // namespace lockstep
