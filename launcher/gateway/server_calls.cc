#include "launcher/gateway/server_calls.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/gateway/tool_calls.h"
#include "launcher/gateway/upstream.h"
#include "lockstep/v1/health.grpc.pb.h"

namespace lockstep {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(10);

// A unary call: start begins it. Its parts are on the coroutine's frame, which waits for it.
template <typename Response, typename Request, typename Start>
Awaitable<absl::StatusOr<Response>> Call(const Connection& connection, const HttpExchange& exchange,
                                         Request request, Start start) {
  grpc::ClientContext context;
  Response response;
  connection.Prepare(context, kCallTimeout, exchange.request().authorization);
  const grpc::Status status = co_await AwaitCall([&](std::function<void(grpc::Status)> on_done) {
    start(&context, &std::as_const(request), &response, std::move(on_done));
  });
  if (!status.ok()) co_return UpstreamError(connection, status);
  co_return std::move(response);
}

}  // namespace

Awaitable<bool> ServerCalls::Serves(const HttpExchange& exchange) {
  using grpc::health::v1::HealthCheckResponse;
  const auto stub = grpc::health::v1::Health::NewStub(connection_.channel());
  const auto health = co_await Call<HealthCheckResponse>(
      connection_, exchange, grpc::health::v1::HealthCheckRequest(),
      [&](auto... call) { stub->async()->Check(call...); });
  co_return health.ok() && health->status() == HealthCheckResponse::SERVING;
}

ServerCalls::AwaitableOr<v1::GetServerInfoResponse> ServerCalls::ServerInfo(
    const HttpExchange& exchange) {
  co_return co_await Call<v1::GetServerInfoResponse>(
      connection_, exchange, v1::GetServerInfoRequest(),
      [&](auto... call) { connection_.stub().async()->GetServerInfo(call...); });
}

ServerCalls::AwaitableOr<v1::GetStatusResponse> ServerCalls::ServerStatus(
    const HttpExchange& exchange) {
  co_return co_await Call<v1::GetStatusResponse>(
      connection_, exchange, v1::GetStatusRequest(),
      [&](auto... call) { connection_.stub().async()->GetStatus(call...); });
}

ServerCalls::AwaitableOr<std::vector<int32_t>> ServerCalls::Tokenize(const HttpExchange& exchange,
                                                                     v1::TokenizeRequest request) {
  const auto response = co_await Call<v1::TokenizeResponse>(
      connection_, exchange, std::move(request),
      [&](auto... call) { connection_.stub().async()->Tokenize(call...); });
  if (!response.ok()) co_return response.status();
  co_return std::vector<int32_t>(response->token_ids().begin(), response->token_ids().end());
}

ServerCalls::AwaitableOr<std::vector<int32_t>> ServerCalls::TokenizePrompt(
    const HttpExchange& exchange, const OpenAiRequest& request, const std::string& prompt) {
  v1::TokenizeRequest tokenize;
  tokenize.set_text(prompt);
  tokenize.set_parse_special_tokens(request.options.parse_special_tokens());
  if (request.options.has_add_special_tokens()) {
    tokenize.set_add_special_tokens(request.options.add_special_tokens());
  }
  if (tokenize.ByteSizeLong() > kMaxUpstreamBytes) {
    co_return absl::OutOfRangeError(absl::StrCat("prompt takes ", tokenize.ByteSizeLong(),
                                                 " bytes: at most ", kMaxUpstreamBytes));
  }
  co_return co_await Tokenize(exchange, std::move(tokenize));
}

ServerCalls::AwaitableOr<std::string> ServerCalls::Detokenize(const HttpExchange& exchange,
                                                              std::vector<int32_t> ids) {
  v1::DetokenizeRequest request;
  request.mutable_token_ids()->Assign(ids.begin(), ids.end());
  request.set_include_special_tokens(true);
  const auto response = co_await Call<v1::DetokenizeResponse>(
      connection_, exchange, std::move(request),
      [&](auto... call) { connection_.stub().async()->Detokenize(call...); });
  if (!response.ok()) co_return response.status();
  co_return response->text();
}

// Asked each time: the server behind may be another one by now.
ServerCalls::AwaitableOr<std::shared_ptr<const ServedChatTemplate>> ServerCalls::ChatTemplateFor(
    const HttpExchange& exchange, bool with_tools) {
  const auto response = co_await Call<v1::GetChatTemplateResponse>(
      connection_, exchange, v1::GetChatTemplateRequest(),
      [&](auto... call) { connection_.stub().async()->GetChatTemplate(call...); });
  if (!response.ok()) co_return response.status();
  const bool has_own = with_tools && !response->tool_source().empty();
  const std::string& source = has_own ? response->tool_source() : response->source();
  if (source.empty()) {
    co_return absl::InvalidArgumentError(
        "this model has no chat template (chat_template in its tokenizer_config.json, or the "
        "server's --chat-template): send the text to /v1/completions");
  }
  std::shared_ptr<const ServedChatTemplate>& kept = chat_templates_[has_own ? 1 : 0];
  if (!kept || !kept->IsOf(source, *response)) {
    auto made = ServedChatTemplate::Make(source, *response);
    if (!made.ok()) co_return made.status();
    kept = std::make_shared<const ServedChatTemplate>(*std::move(made));
  }
  co_return kept;
}

// In pieces, so that no message can end its own turn: what it says is text.
ServerCalls::AwaitableOr<ServerCalls::ChatPrompt> ServerCalls::WriteChat(
    HttpExchange& exchange, const OpenAiRequest& request, v1::GenerateRequest& options) {
  const auto chat_template = co_await ChatTemplateFor(exchange, !request.tool_names.empty());
  if (!chat_template.ok()) co_return chat_template.status();
  // Templates may take a second.
  absl::StatusOr<std::vector<TextPiece>> pieces;
  const absl::Status ran = co_await side_thread_.RunIfSoon(exchange, [&] {
    pieces = request.continues_message ? (*chat_template)->RenderToContinue(request.chat)
                                       : (*chat_template)->Render(request.chat);
  });
  if (!ran.ok()) co_return ran;
  if (!pieces.ok()) co_return pieces.status();
  v1::TokenizeRequest tokenize = TokenizeRequestOf(*pieces);
  if (tokenize.ByteSizeLong() > kMaxUpstreamBytes) {
    co_return absl::InvalidArgumentError(absl::StrCat(
        "the conversation takes ", tokenize.ByteSizeLong(), " bytes: at most ", kMaxUpstreamBytes));
  }
  auto ids = co_await Tokenize(exchange, std::move(tokenize));
  if (!ids.ok()) co_return ids.status();
  ChatPrompt prompt{*std::move(ids), {}};
  const std::string begun =
      request.continues_message ? request.chat["messages"].back()["content"] : "";
  prompt.form.thought = begun.empty() ? (*chat_template)->ThoughtAfter(*pieces)
                                      : (*chat_template)->ThoughtWithin(begun);
  prompt.form.has_short_ids = WantsShortIds((*chat_template)->source());
  if (options.constraint().has_tool_calls()) {
    v1::ToolCalls& calls = *options.mutable_constraint()->mutable_tool_calls();
    calls.set_form(ToolCallFormOf((*chat_template)->source()));
    // Such a model begins its list with a special token, which is no text: where it may write any
    // text, that must not be kept from it.
    const bool is_kept = calls.required() || calls.form() != v1::ToolCalls::FORM_LIST;
    if (is_kept) {
      prompt.form.calls = calls.form();
    } else if (calls.has_answer()) {
      options.mutable_constraint()->set_json_schema(std::string(calls.answer()));
    } else {
      options.clear_constraint();
    }
  }
  if (options.has_constraint()) options.mutable_constraint()->set_thought(prompt.form.thought);
  co_return prompt;
}

// A prompt's first token has no log-probability, but a text: for it a text becomes token ids here.
ServerCalls::AwaitableOr<EchoedPrompt> ServerCalls::Echo(const HttpExchange& exchange,
                                                         const OpenAiRequest& request,
                                                         OpenAiPrompt& prompt) {
  EchoedPrompt echo{prompt.text, ""};
  if (!prompt.token_ids.empty()) {
    auto text = co_await Detokenize(exchange, prompt.token_ids);
    if (!text.ok()) co_return text.status();
    echo.text = *std::move(text);
  } else if (request.wants_logprobs()) {
    auto ids = co_await TokenizePrompt(exchange, request, prompt.text);
    if (!ids.ok()) co_return ids.status();
    prompt.token_ids = *std::move(ids);
  }
  if (!request.wants_logprobs() || prompt.token_ids.empty()) co_return echo;
  auto first = co_await Detokenize(exchange, std::vector<int32_t>(1, prompt.token_ids.front()));
  if (!first.ok()) co_return first.status();
  echo.first_token = *std::move(first);
  co_return echo;
}

}  // namespace lockstep
