#include "runtime/controller/generation_service.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_clock.h"
#include "runtime/controller/journal_entry.h"
#include "runtime/controller/wire.h"

namespace lockstep {
namespace {

// A byte of a constraint takes as long as so many of a text.
constexpr size_t kConstraintWork = 16;
// A token may stand for more text than its own bytes (spaces that an added token strips).
constexpr int64_t kMinLongestTokenBytes = 256;

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return SteadyTimeOf(absl::FromChrono(deadline));
}

void Answer(const absl::StatusOr<grpc::ByteBuffer>& answer, grpc::ByteBuffer* response,
            grpc::ServerUnaryReactor* reactor) {
  if (answer.ok()) *response = *answer;
  reactor->Finish(ToGrpcStatus(answer.status()));
}

absl::StatusOr<std::vector<int32_t>> EncodeAsAsked(const Tokenizer& tokenizer,
                                                   const v1::TokenizeRequest& request) {
  EncodeOptions options;
  options.parse_special_tokens = request.parse_special_tokens();
  if (request.has_add_special_tokens()) options.add_special_tokens = request.add_special_tokens();
  if (request.pieces().empty()) return tokenizer.Encode(request.text(), options);
  if (!request.text().empty()) {
    return absl::InvalidArgumentError("text: must be empty where pieces are given");
  }
  std::vector<TextPiece> pieces;
  for (const v1::TextPiece& piece : request.pieces()) {
    pieces.push_back({piece.text(), piece.is_markup()});
  }
  return tokenizer.EncodePieces(pieces);
}

absl::Status ClientIsGone() { return absl::CancelledError("the client cancelled"); }

}  // namespace

// One Generate or Attach call on its way to the event loop.
struct GenerationService::Call {
  std::shared_ptr<EventWriter> writer;
  v1::GenerateRequest request;
  absl::Time deadline;
  RequestLimits limits;
  CheckedRequest checked;
};

GenerationService::GenerationService(GenerationServiceConfig config, const Tokenizer* tokenizer,
                                     std::shared_ptr<EventLoop> loop,
                                     std::shared_ptr<Journal> journal)
    : config_(std::move(config)),
      tokenizer_(tokenizer),
      constraint_check_(tokenizer, !config_.info.eos_token_ids().empty()),
      loop_(std::move(loop)),
      journal_(std::move(journal)) {
  longest_token_bytes_ = kMinLongestTokenBytes;
  for (int32_t id = 0; tokenizer_ != nullptr && id < tokenizer_->vocab_size(); ++id) {
    longest_token_bytes_ =
        std::max<int64_t>(longest_token_bytes_, tokenizer_->TokenBytes(id).size());
  }
}

absl::StatusOr<const Tokenizer*> GenerationService::RequireTokenizer() const {
  if (tokenizer_ != nullptr) return tokenizer_;
  return absl::InvalidArgumentError("this model has no tokenizer.json: use token ids");
}

absl::Status GenerationService::Authorize(const Context& context) const {
  if (!config_.api_tokens) return absl::OkStatus();
  const auto [first, last] = context.client_metadata().equal_range(kAuthorizationHeader);
  for (auto header = first; header != last; ++header) {
    const absl::string_view shown(header->second.data(), header->second.size());
    if (config_.api_tokens->Accept(shown)) return absl::OkStatus();
  }
  return absl::UnauthenticatedError(
      first == last ? "it wants a token, in the header \"authorization: Bearer TOKEN\""
                    : "this token is not one of its tokens");
}

bool GenerationService::Refused(const Context& context, grpc::ServerUnaryReactor* reactor) const {
  const absl::Status status = Authorize(context);
  if (!status.ok()) reactor->Finish(ToGrpcStatus(status));
  return !status.ok();
}

void GenerationService::GoOn(std::shared_ptr<Call> call, size_t num_bytes, Step step) {
  text_thread_.Run(
      static_cast<int64_t>(num_bytes),
      [this, call = std::move(call), step = std::move(step)](absl::Status status) mutable {
        if (status.ok() && call->writer->cancelled()) status = ClientIsGone();
        if (status.ok()) status = step();
        if (!status.ok()) Refuse(*call, status);
      });
}

std::shared_ptr<GenerationService::Call> GenerationService::NewCall(Context& context) const {
  auto call = std::make_shared<Call>();  // shared: a Task must be movable, a Call travels threads
  call->writer = EventWriter::Create(context, config_.unread);
  call->deadline = DeadlineOf(context);
  return call;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerationService::Generate(Context* context,
                                                                        const Bytes* request) {
  return Open(*context, *request, [this](const std::shared_ptr<Call>& call, const Bytes& bytes) {
    RETURN_IF_ERROR(ParseMessage(bytes, call->request));
    RETURN_IF_ERROR(Begin(*call));
    const size_t num_bytes = call->request.text().size() + call->request.prediction().size();
    GoOn(call, num_bytes + ConstraintWork(*call), [this, call] { return Prepare(*call); });
    return absl::OkStatus();
  });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerationService::Attach(Context* context,
                                                                      const Bytes* request) {
  return Open(*context, *request, [this](const std::shared_ptr<Call>& call, const Bytes& bytes) {
    v1::AttachRequest attach;
    RETURN_IF_ERROR(ParseMessage(bytes, attach));
    RETURN_IF_ERROR(Find(*call, attach));
    GoOn(call, ConstraintWork(*call), [this, call] { return PrepareAgain(*call); });
    return absl::OkStatus();
  });
}

template <typename Read>
grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerationService::Open(Context& context,
                                                                    const Bytes& request,
                                                                    Read read) {
  const std::shared_ptr<Call> call = NewCall(context);
  EventWriter* reactor = call->writer.get();
  if (const absl::Status status = Authorize(context); !status.ok()) {
    Refuse(*call, status);
    return reactor;
  }
  GoOn(call, request.Length(), [call, read, bytes = request] { return read(call, bytes); });
  return reactor;
}

size_t GenerationService::ConstraintWork(const Call& call) {
  return kConstraintWork * call.checked.engine.sampling.constraint.text.size();
}

// The request as it was accepted goes the way of a new one, from the tokens that the client has;
// its stream leaves those out.
absl::Status GenerationService::Find(Call& call, const v1::AttachRequest& attach) {
  if (journal_ == nullptr) {
    return absl::FailedPreconditionError("this server keeps no journal of requests to attach to");
  }
  RETURN_IF_ERROR(CheckRequestId(attach.request_id()));
  std::optional<v1::JournaledRequest> found = journal_->Find(attach.request_id(), SteadyNow());
  if (!found) {
    return absl::NotFoundError(absl::StrCat("there is no request \"", attach.request_id(),
                                            "\" to attach to: it finished, was aborted, or was "
                                            "left alone for too long"));
  }
  call.request = std::move(*found->mutable_request());
  RETURN_IF_ERROR(Begin(call));
  return SetReceived(attach, call.checked);
}

absl::Status GenerationService::PrepareAgain(Call& call) {
  RETURN_IF_ERROR(constraint_check_.Check(call.checked.engine.sampling.constraint));
  const auto& ids = call.request.token_ids().ids();
  return Post(call, std::vector<int32_t>(ids.begin(), ids.end()));
}

// Everything that can be said before the prompt is tokenized.
absl::Status GenerationService::Begin(Call& call) {
  ASSIGN_OR_RETURN(const Capacity capacity, loop_->serving().Admission());
  if (loop_->queues_are_full()) return engine::QueueIsFull(config_.max_queued_requests);
  call.limits = capacity.limits;
  ASSIGN_OR_RETURN(call.checked, CheckRequest(call.request, config_.default_sampling, call.limits));
  if (tokenizer_ == nullptr && call.request.stop().stop_strings_size() > 0) {
    return absl::InvalidArgumentError(
        "stop.stop_strings: this model has no tokenizer.json, so no text to find them in");
  }
  if (config_.info.speculative_tokens() == 0) call.request.clear_prediction();
  if (!call.request.prediction().empty()) {
    RETURN_IF_ERROR(CheckLength("prediction", call.request.prediction(), call.limits));
  }
  return call.request.has_text() ? CheckLength("text", call.request.text(), call.limits)
                                 : absl::OkStatus();
}

absl::Status GenerationService::CheckLength(absl::string_view field, const std::string& text,
                                            const RequestLimits& limits) const {
  RETURN_IF_ERROR(RequireTokenizer().status());
  const auto num_bytes = static_cast<int64_t>(text.size());
  if (num_bytes / longest_token_bytes_ < limits.max_model_len) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " has ", num_bytes, " bytes, but the ",
                                                 kContextLengthWords, " is ", limits.max_model_len,
                                                 " tokens, which hold less"));
}

// Text that goes on: no special tokens.
absl::Status GenerationService::SetPrediction(Call& call) {
  if (call.request.prediction().empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                   tokenizer_->Encode(call.request.prediction(), {.add_special_tokens = false}));
  // No output is longer.
  const auto num_tokens = std::min(std::ssize(tokens), std::ptrdiff_t{call.limits.max_model_len});
  call.checked.engine.prediction.assign(tokens.begin(), tokens.begin() + num_tokens);
  return absl::OkStatus();
}

absl::Status GenerationService::Prepare(Call& call) {
  RETURN_IF_ERROR(constraint_check_.Check(call.checked.engine.sampling.constraint));
  RETURN_IF_ERROR(SetPrediction(call));
  const v1::GenerateRequest& request = call.request;
  if (!request.has_text()) {
    const auto& ids = request.token_ids().ids();
    return Post(call, std::vector<int32_t>(ids.begin(), ids.end()));
  }
  const EncodeOptions options{
      .add_special_tokens = !request.has_add_special_tokens() || request.add_special_tokens(),
      .parse_special_tokens = request.parse_special_tokens()};
  ASSIGN_OR_RETURN(std::vector<int32_t> prompt, tokenizer_->Encode(request.text(), options));
  return Post(call, std::move(prompt));
}

absl::Status GenerationService::Post(Call& call, std::vector<int32_t> prompt) {
  CheckedRequest& checked = call.checked;
  // Only the text's very start drops SentencePiece's leading space; what must have a form has it
  // from its first byte on.
  TextOptions& text = checked.stream.text;
  text.is_constrained = checked.engine.sampling.constraint.kind != OutputConstraint::Kind::kNone;
  text.is_continuation = text.is_constrained || tokenizer_ == nullptr ||
                         std::any_of(prompt.begin(), prompt.end(),
                                     [this](int32_t id) { return !tokenizer_->IsSpecial(id); });
  RETURN_IF_ERROR(SetPrompt(std::move(prompt), call.limits, checked));
  RETURN_IF_ERROR(CheckReceived(call.limits, checked));
  if (checked.stream.attaches && checked.max_tokens != checked.stream.max_tokens) {
    return absl::FailedPreconditionError(
        absl::StrCat("the request was accepted with max_tokens ", *checked.max_tokens,
                     ", now there is room for ", checked.stream.max_tokens));
  }
  const uint64_t number = loop_->NextRequestNumber();
  checked.stream.number = number;
  checked.engine.request_id = number;
  checked.engine.deadline = call.deadline;
  std::shared_ptr<JournalEntry> entry = journal_ == nullptr ? nullptr : Record(call, number);
  call.writer->SetOnDone(
      [loop = loop_, number, entry = std::move(entry)](const grpc::Status& status, bool told) {
        if (entry != nullptr) entry->GiveUp(status, told);
        loop->CallEnded(number);
      });
  call.writer->SetOnCancel([loop = loop_, number] { loop->Cancel(number); });
  loop_->Submit(std::move(checked.engine), std::make_shared<RequestStream>(
                                               std::move(checked.stream), tokenizer_, call.writer));
  return absl::OkStatus();
}

std::shared_ptr<JournalEntry> GenerationService::Record(Call& call, uint64_t number) {
  v1::JournaledRequest request;
  request.set_accepted_at_ms(absl::ToUnixMillis(absl::Now()));
  *request.mutable_request() = ResolvedRequest(call.request, call.checked);
  const auto entry = std::make_shared<JournalEntry>(journal_, std::move(request), number,
                                                    !call.checked.stream.attaches);
  call.checked.stream.journal_entry = entry;
  return entry;
}

void GenerationService::Refuse(Call& call, const absl::Status& status) {
  loop_->CountRejected(status);
  call.writer->Close(ToGrpcStatus(status));
}

grpc::ServerUnaryReactor* GenerationService::Abort(Context* context, const Bytes* request,
                                                   Bytes* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (Refused(*context, reactor)) return reactor;
  v1::AbortRequest parsed;
  if (absl::Status status = ParseMessage(*request, parsed); !status.ok()) {
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }
  loop_->AbortByName(parsed.request_id(), [journal = journal_, id = parsed.request_id(), reactor,
                                           response](bool was_running) {
    if (journal != nullptr) journal->End(id, 0);
    v1::AbortResponse answer;
    answer.set_was_running(was_running);
    Answer(SerializeMessage(answer), response, reactor);
  });
  return reactor;
}

template <typename Work>
grpc::ServerUnaryReactor* GenerationService::AnswerText(Context& context, const Bytes& request,
                                                        Bytes* response, Work work) {
  auto* reactor = new TextCall(context, unread_answers_, config_.unread.patience);  // gRPC's
  if (Refused(context, reactor)) return reactor;
  text_thread_.Run(static_cast<int64_t>(request.Length()),
                   [reactor, response, work, bytes = request](absl::Status status) {
                     if (status.ok() && reactor->is_cancelled()) status = ClientIsGone();
                     reactor->Answer(status.ok() ? work(bytes) : status, response);
                   });
  return reactor;
}

grpc::ServerUnaryReactor* GenerationService::Tokenize(Context* context, const Bytes* request,
                                                      Bytes* response) {
  return AnswerText(
      *context, *request, response, [this](const Bytes& bytes) -> absl::StatusOr<Bytes> {
        v1::TokenizeRequest parsed;
        RETURN_IF_ERROR(ParseMessage(bytes, parsed));
        ASSIGN_OR_RETURN(const Tokenizer* tokenizer, RequireTokenizer());
        ASSIGN_OR_RETURN(const std::vector<int32_t> ids, EncodeAsAsked(*tokenizer, parsed));
        v1::TokenizeResponse result;
        result.mutable_token_ids()->Add(ids.begin(), ids.end());
        return SerializeMessage(result);
      });
}

grpc::ServerUnaryReactor* GenerationService::Detokenize(Context* context, const Bytes* request,
                                                        Bytes* response) {
  return AnswerText(
      *context, *request, response, [this](const Bytes& bytes) -> absl::StatusOr<Bytes> {
        v1::DetokenizeRequest parsed;
        RETURN_IF_ERROR(ParseMessage(bytes, parsed));
        ASSIGN_OR_RETURN(const Tokenizer* tokenizer, RequireTokenizer());
        const std::vector<int32_t> ids(parsed.token_ids().begin(), parsed.token_ids().end());
        v1::DetokenizeResponse result;
        ASSIGN_OR_RETURN(*result.mutable_text(),
                         tokenizer->Decode(ids, parsed.include_special_tokens()));
        return SerializeMessage(result);
      });
}

grpc::ServerUnaryReactor* GenerationService::GetChatTemplate(Context* context, const Bytes*,
                                                             Bytes* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (Refused(*context, reactor)) return reactor;
  Answer(SerializeMessage(config_.chat_template), response, reactor);
  return reactor;
}

grpc::ServerUnaryReactor* GenerationService::GetServerInfo(Context* context, const Bytes*,
                                                           Bytes* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (Refused(*context, reactor)) return reactor;
  Answer(SerializeMessage(Info()), response, reactor);
  return reactor;
}

grpc::ServerUnaryReactor* GenerationService::GetStatus(Context* context, const Bytes*,
                                                       Bytes* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (Refused(*context, reactor)) return reactor;
  Status([reactor, response](const v1::GetStatusResponse& status) {
    Answer(SerializeMessage(status), response, reactor);
  });
  return reactor;
}

v1::GetServerInfoResponse GenerationService::Info() const {
  v1::GetServerInfoResponse info = config_.info;
  if (const std::optional<Capacity> capacity = loop_->serving().capacity()) {
    info.set_num_kv_blocks(capacity->num_kv_blocks);
    info.set_kv_capacity_tokens(capacity->num_kv_blocks * info.kv_block_size());
    info.set_max_model_len(capacity->limits.max_model_len);
  }
  return info;
}

void GenerationService::Status(absl::AnyInvocable<void(v1::GetStatusResponse)> done) const {
  loop_->GetStatus(
      [journal = journal_, done = std::move(done)](v1::GetStatusResponse status) mutable {
        if (journal != nullptr) status.set_journal_error(std::string(journal->error().message()));
        done(std::move(status));
      });
}

}  // namespace lockstep
