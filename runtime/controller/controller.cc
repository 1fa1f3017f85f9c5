#include "runtime/controller/controller.h"

#include <sys/random.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_clock.h"
#include "model/chat_template/chat_template.h"
#include "model/chat_template/chat_template_file.h"
#include "model/checkpoint/checkpoint.h"
#include "model/grammar/thought.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/tokenizer_fingerprint.h"
#include "runtime/controller/event_loop.h"
#include "runtime/controller/generation_service.h"
#include "runtime/controller/health_service.h"
#include "runtime/controller/journal.h"
#include "runtime/controller/listeners.h"
#include "runtime/controller/rank_link.h"
#include "runtime/security/reachability.h"
#include "runtime/worker/link_limits.h"

namespace lockstep {
namespace {

constexpr absl::Duration kCloseGrace = absl::Seconds(1);
constexpr char kNotRecorded[] =
    "; clients cannot attach to requests that are not recorded (PromptAccepted.attachable)";

absl::Status CheckOption(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " ", value, " is outside [", low, ", ", high, "]"));
}

int64_t LongestSequence(const ModelConfig& model) {
  return std::min(model.max_position_embeddings, kLinkMaxSequenceTokens);
}

// A token is chosen after each guess, where no sequence runs that could have chosen one.
absl::Status CheckSpeculation(const ControllerOptions& options) {
  constexpr int kMostSpeculativeTokens = 32;
  const int num_slots = std::min(options.max_num_seqs, options.max_batched_tokens);
  const absl::Status checked = CheckOption("speculative_tokens", options.speculative_tokens, 0,
                                           std::min(num_slots - 1, kMostSpeculativeTokens));
  if (checked.ok() || num_slots > kMostSpeculativeTokens) return checked;
  return absl::InvalidArgumentError(absl::StrCat(checked.message(), ": fewer than max_num_seqs ",
                                                 options.max_num_seqs, " and max_batched_tokens ",
                                                 options.max_batched_tokens));
}

std::string DrawSecret() {
  unsigned char bytes[32];
  LS_CHECK_EQ(getrandom(bytes, sizeof(bytes), 0), static_cast<ssize_t>(sizeof(bytes)));
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<char*>(bytes), sizeof(bytes)));
}

// What ranks must have the same of.
struct Fingerprints {
  std::string model;
  std::string tokenizer;
};

CoreConfig MakeCoreConfig(const ControllerOptions& options, const ModelConfig& model,
                          const Fingerprints& fingerprints, const ProcessGrid& grid) {
  return CoreConfig{
      .num_replicas = options.num_replicas,
      .grid = grid,
      .version = options.version,
      .model_fingerprint = fingerprints.model,
      .tokenizer_fingerprint = fingerprints.tokenizer,
      .first_epoch = options.epoch,
      .adopt_epochs = options.adopt_epochs,
      .engine = {.block_size = options.block_size,
                 .max_num_seqs = options.max_num_seqs,
                 .max_batched_tokens = options.max_batched_tokens,
                 .max_queued_requests = options.max_queued_requests,
                 .pipeline_depth = options.pipeline_parallel,
                 .max_steps_in_flight = options.pipeline_parallel + 1,
                 .enable_prefix_cache = options.enable_prefix_cache,
                 .eos_token_ids = model.eos_token_ids,
                 .vocab_size = model.vocab_size,
                 .max_draft_tokens = options.speculative_tokens},
      .max_model_len = options.max_model_len,
      .max_position_embeddings = LongestSequence(model),
      .limits = {.vocab_size = model.vocab_size, .max_num_outputs = options.max_num_outputs},
      .heartbeat_interval = options.heartbeat_interval,
      .lease = options.lease,
      .join_timeout = options.join_timeout,
      .load_timeout = options.load_timeout,
      .recovery_window = options.recovery_window,
      .keeps_ranks = options.keep_ranks,
      .step_deadline = options.step_deadline,
      .predict_speed = options.predict_speed};
}

v1::GetServerInfoResponse ServerInfo(const ControllerOptions& options, const ModelConfig& model,
                                     const std::string& fingerprint) {
  v1::GetServerInfoResponse info;
  info.set_version(options.version);
  info.set_model_path(options.model_dir.string());
  info.set_model_name(options.model_name);
  info.set_model_fingerprint(fingerprint);
  info.set_num_parameters(model.num_parameters());
  info.set_weight_dtype(std::string(options.quantize == Quantization::kNone
                                        ? DTypeName(model.dtype)
                                        : QuantizationName(options.quantize)));
  info.set_vocab_size(static_cast<int32_t>(model.vocab_size));
  info.set_tensor_parallel(options.tensor_parallel);
  info.set_pipeline_parallel(options.pipeline_parallel);
  info.set_num_replicas(options.num_replicas);
  info.set_max_model_len(options.max_model_len);
  info.set_max_num_seqs(options.max_num_seqs);
  info.set_max_batched_tokens(options.max_batched_tokens);
  info.set_kv_block_size(options.block_size);
  info.set_speculative_tokens(options.speculative_tokens);
  info.mutable_eos_token_ids()->Add(model.eos_token_ids.begin(), model.eos_token_ids.end());
  if (model.bos_token_id) info.set_bos_token_id(*model.bos_token_id);
  return info;
}

const TlsIdentity* AddressOf(const std::optional<TlsIdentity>& identity) {
  return identity ? &*identity : nullptr;
}

// A model without tokenizer.json is served by token ids alone.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::filesystem::path& directory) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(directory);
  if (absl::IsNotFound(tokenizer.status())) return std::unique_ptr<Tokenizer>();
  return tokenizer;
}

// Texts with tokens that the model has no row for are refused when they come.
void WarnOfTokensBeyond(int64_t vocab_size, const Tokenizer* tokenizer, EventLoop& loop) {
  if (tokenizer == nullptr || tokenizer->vocab_size() <= vocab_size) return;
  loop.Warn(absl::StrCat("tokenizer.json has token ids up to ", tokenizer->vocab_size() - 1,
                         ", the model up to ", vocab_size - 1,
                         ": prompts with tokens above that will be refused"));
}

// One that is not understood costs its chats alone, and is told as an event.
absl::StatusOr<v1::GetChatTemplateResponse> LoadChatTemplate(const ControllerOptions& options,
                                                             const Tokenizer* tokenizer,
                                                             EventLoop& loop) {
  const auto file = ReadChatTemplate(options.model_dir, options.chat_template);
  if (!file.ok() && !options.chat_template.empty()) return file.status();
  absl::Status parsed = file.status();
  if (file.ok()) parsed.Update(ChatTemplate::Parse(file->source).status());
  if (file.ok()) parsed.Update(ChatTemplate::Parse(file->tool_source).status());
  if (!parsed.ok()) {
    loop.Warn(absl::StrCat("chats will be refused: the chat template: ", parsed.message()));
  }
  v1::GetChatTemplateResponse response;
  if (!file.ok()) return response;
  response.set_source(file->source);
  response.set_tool_source(file->tool_source);
  if (tokenizer != nullptr) {
    const std::optional<int32_t> end = tokenizer->TokenId(grammar::kThoughtEnd);
    response.set_thinks_in_text(!end || !tokenizer->IsSpecial(*end));
  }
  response.mutable_special_tokens()->insert(file->special_tokens.begin(),
                                            file->special_tokens.end());
  return response;
}

// Null without one. What was found in it is told as an event.
absl::StatusOr<std::shared_ptr<Journal>> OpenJournal(const ControllerOptions& options,
                                                     const std::string& fingerprint,
                                                     const std::shared_ptr<EventLoop>& loop) {
  if (options.journal.empty()) return std::shared_ptr<Journal>();
  ASSIGN_OR_RETURN(std::shared_ptr<Journal> journal,
                   Journal::Open({.path = options.journal,
                                  .model_fingerprint = fingerprint,
                                  .reattach_window = options.reattach_window,
                                  .on_error =
                                      [loop = std::weak_ptr(loop)](const absl::Status& error) {
                                        if (const auto alive = loop.lock()) {
                                          alive->Warn(absl::StrCat(error.message(), kNotRecorded));
                                        }
                                      }},
                                 SteadyNow()));
  std::string found;
  if (journal->num_recovered() > 0) {
    found = absl::StrCat(journal->num_recovered(), " unfinished requests wait for their clients");
  }
  if (journal->num_bytes_cut() > 0) {
    absl::StrAppend(&found, found.empty() ? "" : "; ", "cut ", journal->num_bytes_cut(),
                    " bytes of a record that was being written");
  }
  if (!found.empty()) loop->Warn(absl::StrCat("journal ", options.journal, ": ", found));
  return journal;
}

}  // namespace

absl::Status CheckControllerOptions(const ControllerOptions& options, const ModelConfig& model) {
  RETURN_IF_ERROR(CheckOption("max_num_seqs", options.max_num_seqs, 1, 65536));
  RETURN_IF_ERROR(CheckOption("max_batched_tokens", options.max_batched_tokens, 1, 1 << 20));
  RETURN_IF_ERROR(CheckSpeculation(options));
  RETURN_IF_ERROR(CheckOption("block_size", options.block_size, 1, 1024));
  RETURN_IF_ERROR(CheckOption("max_queued_requests", options.max_queued_requests, 1, 1 << 20));
  RETURN_IF_ERROR(CheckOption("num_replicas", options.num_replicas, 1, 256));
  RETURN_IF_ERROR(CheckOption("max_num_outputs", options.max_num_outputs, 1, 1024));
  if (model.max_position_embeddings < 2) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model has max_position_embeddings ", model.max_position_embeddings,
                     "; at least 2 are needed, for a token of prompt and one of output"));
  }
  if (options.max_model_len != 0) {
    RETURN_IF_ERROR(CheckOption("max_model_len", options.max_model_len, 2, LongestSequence(model)));
  }
  if (!options.local_listen.empty() && !absl::StartsWith(options.local_listen, "unix:")) {
    return absl::InvalidArgumentError(
        absl::StrCat("local_listen \"", options.local_listen, "\" is not unix:/path"));
  }
  RETURN_IF_ERROR(CheckExposure({.flag = "--listen",
                                 .address = options.listen,
                                 .is_permitted = options.client_tls || options.insecure_listen,
                                 .tls_flags = "--tls-cert and --tls-key"}));
  return CheckLayout(model.sharded_sizes(), options.tensor_parallel, options.pipeline_parallel);
}

// Destroyed from the bottom up: servers first, the loop last.
struct Controller::Impl {
  std::string secret;
  int num_replicas = 1;
  std::optional<PrivateDirectory> socket_directory;
  std::unique_ptr<Tokenizer> tokenizer;
  HealthService health;
  std::shared_ptr<EventLoop> loop;   // shared with calls that may end last
  std::shared_ptr<Journal> journal;  // likewise
  std::unique_ptr<GenerationService> generation;
  std::unique_ptr<WorkerLinkService> worker_link;
  std::vector<std::string> worker_addresses;
  Listening ranks;
  Listening clients;
  absl::Mutex shutdown_mutex;
  bool shut_down = false;

  absl::Status Listen(const ControllerOptions& options);
};

absl::Status Controller::Impl::Listen(const ControllerOptions& options) {
  std::vector<std::string> addresses = options.worker_listen;
  if (addresses.empty()) {
    ASSIGN_OR_RETURN(socket_directory, PrivateDirectory::Create());
    addresses.push_back(absl::StrCat("unix:", socket_directory->path(), "/ranks"));
  }
  ASSIGN_OR_RETURN(
      ranks, ListenForRanks(addresses, AddressOf(options.worker_tls), options.lease, *worker_link));
  for (size_t i = 0; i < addresses.size(); ++i) {
    worker_addresses.push_back(absl::StartsWith(addresses[i], "unix:")
                                   ? addresses[i]
                                   : WithPort(addresses[i], ranks.ports[i]));
  }
  std::vector<std::string> client_addresses = {options.listen};
  if (!options.local_listen.empty()) client_addresses.push_back(options.local_listen);
  const ClientListener listener{.addresses = std::move(client_addresses),
                                .tls = AddressOf(options.client_tls),
                                .serve_reflection = !options.api_tokens.has_value()};
  ASSIGN_OR_RETURN(clients, ListenForClients(listener, {generation.get(), &health}));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Controller>> Controller::Start(ControllerOptions options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                   Checkpoint::Open(options.model_dir));
  const ModelConfig& model = checkpoint->config();
  ASSIGN_OR_RETURN(const std::string fingerprint, checkpoint->Fingerprint(options.quantize));
  RETURN_IF_ERROR(CheckControllerOptions(options, model));
  ASSIGN_OR_RETURN(const ProcessGrid grid,
                   ProcessGrid::Create(options.tensor_parallel, options.pipeline_parallel));
  ASSIGN_OR_RETURN(const SamplingParams sampling,
                   DefaultSampling(checkpoint->generation_defaults(), model.vocab_size));

  auto impl = std::make_unique<Impl>();
  ASSIGN_OR_RETURN(impl->tokenizer, LoadTokenizer(options.model_dir));
  ASSIGN_OR_RETURN(const std::string tokenizer, TokenizerFingerprint(options.model_dir));
  impl->num_replicas = options.num_replicas;
  impl->secret = options.secret.empty() ? DrawSecret() : options.secret;
  impl->loop = std::make_shared<EventLoop>(
      MakeCoreConfig(options, model, {.model = fingerprint, .tokenizer = tokenizer}, grid),
      options.observer, impl->health);
  WarnOfTokensBeyond(model.vocab_size, impl->tokenizer.get(), *impl->loop);
  ASSIGN_OR_RETURN(impl->journal, OpenJournal(options, fingerprint, impl->loop));
  ASSIGN_OR_RETURN(v1::GetChatTemplateResponse chat_template,
                   LoadChatTemplate(options, impl->tokenizer.get(), *impl->loop));
  impl->generation = std::make_unique<GenerationService>(
      GenerationServiceConfig{.default_sampling = sampling,
                              .max_queued_requests = options.max_queued_requests,
                              .unread = {options.max_unread_bytes, options.unread_patience},
                              .api_tokens = options.api_tokens,
                              .info = ServerInfo(options, model, fingerprint),
                              .chat_template = std::move(chat_template)},
      impl->tokenizer.get(), impl->loop, impl->journal);
  impl->worker_link = std::make_unique<WorkerLinkService>(
      impl->loop, impl->secret, options.num_replicas * grid.world_size(), options.hello_timeout);
  const absl::Status listening = impl->Listen(options);
  std::unique_ptr<Controller> controller(new Controller(std::move(impl)));
  if (!listening.ok()) return listening;  // the destructor closes what was opened
  return controller;
}

Controller::Controller(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Controller::~Controller() { Shutdown(); }

int Controller::client_port() const { return impl_->clients.ports.front(); }
const std::vector<std::string>& Controller::worker_addresses() const {
  return impl_->worker_addresses;
}
const std::string& Controller::secret() const { return impl_->secret; }

v1::GetServerInfoResponse Controller::GetServerInfo() const { return impl_->generation->Info(); }
void Controller::GetStatus(absl::AnyInvocable<void(v1::GetStatusResponse)> done) const {
  impl_->generation->Status(std::move(done));
}

absl::Status Controller::WaitServing(absl::Time deadline) {
  return impl_->loop->serving().WaitServing(deadline);
}
void Controller::Fail(std::string reason) { impl_->loop->Fail(std::move(reason)); }
void Controller::BeginEpoch(int replica, uint64_t epoch) {
  LS_CHECK(replica >= 0 && replica < impl_->num_replicas) << "replica " << replica;
  impl_->loop->BeginEpoch(replica, epoch);
}
void Controller::GiveUpReplica(int replica, std::string reason) {
  LS_CHECK(replica >= 0 && replica < impl_->num_replicas) << "replica " << replica;
  impl_->loop->GiveUpReplica(replica, std::move(reason));
}
void Controller::BeginDrain() { impl_->loop->BeginDrain(); }
bool Controller::WaitDrained(absl::Time deadline) {
  return impl_->loop->serving().WaitDrained(deadline);
}

void Controller::Shutdown() {
  absl::MutexLock lock(&impl_->shutdown_mutex);
  if (std::exchange(impl_->shut_down, true)) return;
  impl_->generation->BeginStop();
  impl_->loop->EndAll("the server is shutting down");
  impl_->health.EndWatches();
  const auto deadline = absl::ToChronoTime(absl::Now() + kCloseGrace);
  if (impl_->clients.server != nullptr) impl_->clients.server->Shutdown(deadline);
  if (impl_->ranks.server != nullptr) impl_->ranks.server->Shutdown(deadline);
  impl_->generation->Stop();
  impl_->loop->Stop();
}

}  // namespace lockstep
