#include "tests/launcher/fake_server.h"

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"

namespace lockstep::testing {

class FakeServer::Service final : public v1::Generation::Service {
 public:
  explicit Service(std::string chat_template) : chat_template_(std::move(chat_template)) {}
  int64_t num_flooded() const { return num_flooded_; }

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateEvent>* writer) override {
    if (request->text() == "refuse" || request->text() == "refuse\n") {
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full"};
    }
    const v1::OutputConstraint& constraint = request->constraint();
    const bool may_call = constraint.has_tool_calls() && !constraint.tool_calls().required();
    if (request->has_constraint() && !may_call) {
      return {grpc::StatusCode::INVALID_ARGUMENT,
              absl::StrCat("constraint: ", constraint.ShortDebugString())};
    }
    v1::GenerateEvent accepted;
    accepted.mutable_accepted()->set_request_id(
        request->request_id().empty() ? "r1" : request->request_id());
    accepted.mutable_accepted()->set_num_prompt_tokens(3);
    accepted.mutable_accepted()->set_seed(request->sampling().seed());
    writer->Write(accepted);
    if (may_call) return Say(R"({"name": "f", "parameters": {}})", *writer);
    const std::string& text = request->text();
    if (const size_t said = text.rfind(kSay); said != std::string::npos) {
      return Say(UpToMarker(text.substr(said + sizeof(kSay) - 1)), *writer);
    }
    if (const size_t said = text.rfind(kMuse); said != std::string::npos) {
      const std::string answer = UpToMarker(text.substr(said + sizeof(kMuse) - 1));
      return Say(absl::StrCat("<think>\nIs it 5?\n</think>\n\n", answer), *writer);
    }
    if (request->has_token_ids() && !request->stop().has_max_tokens()) {
      return Say("So.\n</think>\n\nYes.", *writer);
    }
    while (request->text() == "flood" && !context->IsCancelled()) {
      v1::GenerateEvent event;
      event.mutable_delta()->set_text(std::string(1 << 20, 'x'));
      if (writer->Write(event)) ++num_flooded_;
    }
    const int num_outputs = std::max(1, request->sampling().num_outputs());
    for (int token = 0; token < request->stop().max_tokens(); ++token) {
      for (int output = 0; output < num_outputs; ++output) WriteToken(*writer, output, token);
      while (request->text() == "hang" && !context->IsCancelled()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    for (int output = 0; output < num_outputs; ++output) {
      v1::GenerateEvent event;
      event.mutable_finished()->set_output_index(output);
      event.mutable_finished()->set_reason(v1::FINISH_REASON_LENGTH);
      if (output == num_outputs - 1) {
        event.mutable_finished()->mutable_usage()->set_num_prompt_tokens(3);
      }
      writer->Write(event);
    }
    if (request->text() == "break") return {grpc::StatusCode::UNAVAILABLE, "gone"};
    return grpc::Status::OK;
  }

  grpc::Status Tokenize(grpc::ServerContext*, const v1::TokenizeRequest* request,
                        v1::TokenizeResponse* response) override {
    for (const v1::TextPiece& piece : request->pieces()) {
      response->add_token_ids(piece.is_markup() ? 1 : 2);
    }
    if (request->pieces().empty()) response->add_token_ids(1);
    return grpc::Status::OK;
  }

  grpc::Status Detokenize(grpc::ServerContext*, const v1::DetokenizeRequest* request,
                          v1::DetokenizeResponse* response) override {
    for (const int32_t id : request->token_ids()) {
      absl::StrAppend(response->mutable_text(), "t", id, " ");
    }
    return grpc::Status::OK;
  }

  grpc::Status GetChatTemplate(grpc::ServerContext*, const v1::GetChatTemplateRequest*,
                               v1::GetChatTemplateResponse* response) override {
    response->set_source(chat_template_);
    response->set_thinks_in_text(true);
    (*response->mutable_special_tokens())["bos_token"] = "<s>";
    return grpc::Status::OK;
  }

  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::GetServerInfoResponse* response) override {
    response->set_model_name("fake");
    response->set_vocab_size(100);
    response->set_max_model_len(64);
    return grpc::Status::OK;
  }

  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*,
                         v1::GetStatusResponse* response) override {
    response->set_requests_accepted(4711);
    return grpc::Status::OK;
  }

 private:
  static constexpr char kSay[] = "say:";
  static constexpr char kMuse[] = "muse:";

  static std::string UpToMarker(const std::string& rest) {
    return rest.substr(0, rest.find_first_of("<\n"));
  }

  static grpc::Status Say(const std::string& text, grpc::ServerWriter<v1::GenerateEvent>& writer) {
    v1::GenerateEvent event;
    event.mutable_delta()->add_token_ids(0);
    event.mutable_delta()->set_text(text);
    writer.Write(event);
    event.mutable_finished()->set_reason(v1::FINISH_REASON_STOP);
    writer.Write(event);
    return grpc::Status::OK;
  }

  static void WriteToken(grpc::ServerWriter<v1::GenerateEvent>& writer, int output, int token) {
    v1::GenerateEvent event;
    event.mutable_delta()->set_output_index(output);
    event.mutable_delta()->add_token_ids(token);
    event.mutable_delta()->set_text(absl::StrCat("t", token, " "));
    v1::Logprobs& logprobs = *event.mutable_delta()->add_logprobs();
    logprobs.mutable_token()->set_token_id(token);
    logprobs.mutable_token()->set_logprob(-0.1f);
    logprobs.mutable_token()->set_text("\xC3");  // half a character
    writer.Write(event);
  }

  const std::string chat_template_;
  std::atomic<int64_t> num_flooded_{0};
};

FakeServer::FakeServer(std::string chat_template)
    : service_(std::make_unique<Service>(std::move(chat_template))) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
  address_ = absl::StrCat("127.0.0.1:", port);
}

int64_t FakeServer::num_flooded() const { return service_->num_flooded(); }

FakeServer::~FakeServer() { server_->Shutdown(std::chrono::system_clock::now()); }

}  // namespace lockstep::testing
