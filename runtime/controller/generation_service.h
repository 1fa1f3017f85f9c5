// lockstep.v1.Generation: parses, checks and tokenizes on gRPC's threads (what is long on a thread
// of its own), then posts to the event loop.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "lockstep/v1/generation.grpc.pb.h"
#include "model/sampling/sampling_params.h"
#include "model/tokenizer/tokenizer.h"
#include "runtime/controller/constraint_check.h"
#include "runtime/controller/event_loop.h"
#include "runtime/controller/event_writer.h"
#include "runtime/controller/journal.h"
#include "runtime/controller/request_validation.h"
#include "runtime/controller/text_call.h"
#include "runtime/controller/text_thread.h"
#include "runtime/security/api_tokens.h"

namespace lockstep {

struct GenerationServiceConfig {
  SamplingParams default_sampling;
  int64_t max_queued_requests = 0;  // of a replica, for messages
  UnreadLimits unread;
  std::optional<ApiTokens> api_tokens;  // every call must show one of them
  v1::GetServerInfoResponse info;       // without what the ranks decide
  v1::GetChatTemplateResponse chat_template;
};

// Every method takes raw bytes (see wire.h).
class GenerationService final
    : public v1::Generation::WithRawCallbackMethod_Generate<
          v1::Generation::WithRawCallbackMethod_Attach<v1::Generation::WithRawCallbackMethod_Abort<
              v1::Generation::WithRawCallbackMethod_Tokenize<
                  v1::Generation::WithRawCallbackMethod_Detokenize<
                      v1::Generation::WithRawCallbackMethod_GetChatTemplate<
                          v1::Generation::WithRawCallbackMethod_GetServerInfo<
                              v1::Generation::WithRawCallbackMethod_GetStatus<
                                  v1::Generation::Service>>>>>>>> {
 public:
  // tokenizer must outlive the service and the loop's streams; null = the model has none. journal:
  // null = none is kept.
  GenerationService(GenerationServiceConfig config, const Tokenizer* tokenizer,
                    std::shared_ptr<EventLoop> loop, std::shared_ptr<Journal> journal);
  // What has not reached the loop yet is refused, before the servers wait for it; then, once they
  // have ended, the thread that works on texts.
  void BeginStop() { text_thread_.Refuse(); }
  void Stop() { text_thread_.Stop(); }

  // What GetServerInfo and GetStatus answer; done is called on a thread of the loop's, or never
  // once that has ended.
  v1::GetServerInfoResponse Info() const;
  void Status(absl::AnyInvocable<void(v1::GetStatusResponse)> done) const;

  using Context = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;
  grpc::ServerWriteReactor<Bytes>* Generate(Context* context, const Bytes* request) override;
  grpc::ServerWriteReactor<Bytes>* Attach(Context* context, const Bytes* request) override;
  grpc::ServerUnaryReactor* Abort(Context* context, const Bytes* request, Bytes* response) override;
  grpc::ServerUnaryReactor* Tokenize(Context* context, const Bytes* request,
                                     Bytes* response) override;
  grpc::ServerUnaryReactor* Detokenize(Context* context, const Bytes* request,
                                       Bytes* response) override;
  grpc::ServerUnaryReactor* GetChatTemplate(Context* context, const Bytes* request,
                                            Bytes* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(Context* context, const Bytes* request,
                                          Bytes* response) override;
  grpc::ServerUnaryReactor* GetStatus(Context* context, const Bytes* request,
                                      Bytes* response) override;

 private:
  struct Call;
  using Step = absl::AnyInvocable<absl::Status()>;
  // UNAUTHENTICATED unless the call shows an API token, where they are asked for.
  absl::Status Authorize(const Context& context) const;
  // True when a unary call was answered so.
  bool Refused(const Context& context, grpc::ServerUnaryReactor* reactor) const;
  std::shared_ptr<Call> NewCall(Context& context) const;
  template <typename Read>
  grpc::ServerWriteReactor<Bytes>* Open(Context& context, const Bytes& request, Read read);
  // The step is done in its turn, by the text's length; where it fails the call is refused.
  void GoOn(std::shared_ptr<Call> call, size_t num_bytes, Step step);
  template <typename Work>
  grpc::ServerUnaryReactor* AnswerText(Context& context, const Bytes& request, Bytes* response,
                                       Work work);
  static size_t ConstraintWork(const Call& call);  // in bytes of a text that take as long
  absl::Status Begin(Call& call);
  absl::Status Find(Call& call, const v1::AttachRequest& attach);
  absl::Status PrepareAgain(Call& call);
  // All that takes time, and grows with texts.
  absl::Status Prepare(Call& call);
  absl::Status CheckLength(absl::string_view field, const std::string& text,
                           const RequestLimits& limits) const;
  absl::Status SetPrediction(Call& call);
  absl::Status Post(Call& call, std::vector<int32_t> prompt);
  std::shared_ptr<JournalEntry> Record(Call& call, uint64_t number);
  void Refuse(Call& call, const absl::Status& status);
  absl::StatusOr<const Tokenizer*> RequireTokenizer() const;

  const GenerationServiceConfig config_;
  const Tokenizer* const tokenizer_;
  const ConstraintCheck constraint_check_;
  int64_t longest_token_bytes_ = 0;
  // Shared: calls may end after the controller let go of its loop.
  const std::shared_ptr<EventLoop> loop_;
  const std::shared_ptr<Journal> journal_;
  const std::shared_ptr<UnreadAnswers> unread_answers_ = std::make_shared<UnreadAnswers>();
  TextThread text_thread_;
};

}  // namespace lockstep
