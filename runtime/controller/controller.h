// The gRPC controller: accepts clients and ranks, and drives the engine from one event loop thread.
//
// Start() binds both addresses and returns at once; the model serves when every rank has joined,
// loaded and said Ready (WaitServing). All methods are thread-safe. Destruction is Shutdown().
//
// A lost rank is a lost replica: its streams are closed, and its requests move to the replicas that
// serve. When none does, health says NOT_SERVING and requests wait options.recovery_window for the
// ranks of the next epoch, which continue them; else they end UNAVAILABLE.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/quantization.h"
#include "lockstep/v1/generation.pb.h"
#include "model/model_config.h"
#include "runtime/controller/controller_event.h"
#include "runtime/controller/served_load.h"
#include "runtime/controller/step_deadline.h"
#include "runtime/security/api_tokens.h"
#include "runtime/security/tls.h"

namespace lockstep {

struct ControllerOptions {
  std::filesystem::path model_dir;
  Quantization quantize = Quantization::kNone;  // how ranks must keep the model's matrices
  std::string model_name;                       // what clients call it
  std::filesystem::path chat_template;          // instead of the model's own; empty = that
  int tensor_parallel = 1;
  int pipeline_parallel = 1;
  int max_num_seqs = 256;         // [1, 65536]
  int max_batched_tokens = 2048;  // per step; [1, 1048576]
  int64_t max_model_len =
      0;  // 0 = the model's max_position_embeddings, or what the cache holds if that is less
  int block_size = 16;  // tokens; [1, 1024]
  int max_queued_requests = 1024;
  int max_num_outputs = 64;  // n of one request
  bool enable_prefix_cache = true;
  // That an output may guess in a step, computed where no sequence runs: [0, 32], fewer than
  // max_num_seqs and max_batched_tokens; 0 = none.
  int speculative_tokens = 0;

  std::string listen = "127.0.0.1:0";  // clients: HOST:PORT, port 0 = any
  // TLS for clients; with an authority they must show a certificate too.
  std::optional<TlsIdentity> client_tls;
  // A Unix socket, "unix:/path", where clients of this user are let in, too, in clear and without
  // certificates, which the right to open it stands for. Empty = none.
  std::string local_listen;
  // When given, every call but health's must show one of them, and reflection is off.
  std::optional<ApiTokens> api_tokens;
  // Listen for clients beyond this machine although TLS is missing.
  bool insecure_listen = false;
  // Ranks: each "unix:/path" or "HOST:PORT". Empty = a Unix socket in a fresh directory of mode
  // 0700.
  std::vector<std::string> worker_listen;
  // TLS for ranks that dial HOST:PORT; with an authority (which it should have) they must show a
  // certificate. Unix sockets are never encrypted.
  std::optional<TlsIdentity> worker_tls;
  std::string secret;    // every rank must show it; empty = one is drawn (Controller::secret)
  std::string version;   // ranks must show the same; empty = not checked
  int num_replicas = 1;  // [1, 256]; it serves when one is ready
  uint64_t epoch = 1;    // the first of every replica
  // Ranks placed by hand count epochs themselves: a higher one in a Hello begins it (epoch is then
  // the lowest but one). Else BeginEpoch does.
  bool adopt_epochs = false;
  absl::Duration heartbeat_interval = absl::Milliseconds(500);  // asked of the ranks
  // A rank that says nothing for so long is lost, neither heartbeats nor answers to keepalive
  // pings; infinite = the end of its stream alone tells. One second took a machine whose cores were
  // taken for a moment for dead.
  absl::Duration lease = absl::Seconds(5);
  absl::Duration join_timeout = absl::Seconds(30);  // from the first rank's Hello to the last one's
  absl::Duration load_timeout = absl::Minutes(5);   // without any rank's progress, before it serves
  absl::Duration hello_timeout = absl::Seconds(10);  // for a new stream to say who it is
  // A step that takes longer, with no rank showing progress, loses the replica.
  StepDeadlineOptions step_deadline;
  // The file that records accepted requests, so that clients can attach to them again after a
  // broken stream or a restart of the controller. Empty = none.
  std::string journal;
  absl::Duration reattach_window = absl::Minutes(10);  // for a request without a stream
  // How long requests wait while no replica serves; zero = not at all.
  absl::Duration recovery_window = absl::ZeroDuration();
  // Shutdown leaves the ranks to dial the next controller, as its death does; else they end with
  // it.
  bool keep_ranks = false;
  // Memory that what one client leaves unread may take before its request ends with
  // RESOURCE_EXHAUSTED.
  int64_t max_unread_bytes = 16 << 20;
  // How long a client may take nothing of a complete stream before that ends likewise.
  absl::Duration unread_patience = absl::Minutes(1);

  // Says how fast a load should be served; null = nobody knows. Any thread calls it.
  SpeedPredictor predict_speed;
  // Called from the event loop thread, in order; must not block nor call back into the controller.
  std::function<void(const ControllerEvent&)> observer;
};

// INVALID_ARGUMENT naming an option out of range, or a clients' address that others can reach
// without TLS; FAILED_PRECONDITION for a model that no option helps; what CheckLayout says.
absl::Status CheckControllerOptions(const ControllerOptions& options, const ModelConfig& model);

class Controller {
 public:
  // Errors: of CheckControllerOptions; what Checkpoint::Open, Tokenizer::Load and Journal::Open
  // say; UNAVAILABLE naming an address that cannot be bound.
  static absl::StatusOr<std::unique_ptr<Controller>> Start(ControllerOptions options);
  ~Controller();
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  int client_port() const;
  // Addresses as gRPC targets that ranks can dial ("unix:/path", "127.0.0.1:40123"), in the order
  // of worker_listen.
  const std::vector<std::string>& worker_addresses() const;
  const std::string& secret() const;

  // What the service's methods of these names answer. done is called on another thread, or never
  // after Shutdown.
  v1::GetServerInfoResponse GetServerInfo() const;
  void GetStatus(absl::AnyInvocable<void(v1::GetStatusResponse)> done) const;

  // OK once serving; FAILED_PRECONDITION with the cause when the start failed; DEADLINE_EXCEEDED.
  absl::Status WaitServing(absl::Time deadline);

  // The ranks' job died and no other will come: requests in flight end UNAVAILABLE with `reason`,
  // health is NOT_SERVING.
  void Fail(std::string reason);
  // A new job of ranks will join this replica with this epoch (greater than the last). Streams of
  // older epochs are closed and refused; unfinished requests continue once its ranks are ready.
  void BeginEpoch(int replica, uint64_t epoch);
  // No job will join this replica any more: its status says so, with `reason`.
  void GiveUpReplica(int replica, std::string reason);

  // New requests are refused UNAVAILABLE, accepted ones go on.
  void BeginDrain();
  // True when nothing is left and clients have been told all; false at the deadline (what is left
  // ends in Shutdown).
  bool WaitDrained(absl::Time deadline);
  // Ends what is left, tells every rank to shut down, closes both servers. Idempotent.
  void Shutdown();

 private:
  struct Impl;
  explicit Controller(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
