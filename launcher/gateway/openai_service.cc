#include "launcher/gateway/openai_service.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "launcher/cli/values.h"
#include "launcher/gateway/completion_run.h"
#include "launcher/gateway/openai_error.h"
#include "launcher/gateway/tool_calls.h"
#include "launcher/gateway/upstream.h"
#include "launcher/metrics/server_metrics.h"
#include "lockstep/v1/health.grpc.pb.h"
#include "runtime/security/api_tokens.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::Duration kCallTimeout = absl::Seconds(10);
constexpr char kCompletions[] = "/v1/completions";
constexpr char kChatCompletions[] = "/v1/chat/completions";
constexpr char kModels[] = "/v1/models";  // and what is below it
constexpr char kHealth[] = "/health";
constexpr char kOther[] = "other";
constexpr size_t kMaxRequestBytes = 4 << 20;   // the server takes no more
constexpr size_t kMaxOptionsBytes = 64 << 20;  // of all prompts of a request
constexpr size_t kMaxAuthorizationBytes = ApiTokens::kMaxTokenBytes + 16;

bool IsJson(absl::string_view content_type) {
  const absl::string_view type = content_type.substr(0, content_type.find(';'));
  return absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(type), "application/json");
}

const char* RouteOf(absl::string_view path) {
  for (const char* route : {kCompletions, kChatCompletions, kModels, kHealth, kMetricsPath}) {
    if (path == route) return route;
  }
  return absl::StartsWith(path, absl::StrCat(kModels, "/")) ? kModels : kOther;
}

// Without percent-encoding; what is none stays.
std::string DecodedPath(absl::string_view path) {
  std::string decoded;
  for (size_t i = 0; i < path.size(); ++i) {
    int byte = 0;
    const bool is_encoded = path[i] == '%' && i + 2 < path.size() &&
                            absl::ascii_isxdigit(static_cast<unsigned char>(path[i + 1])) &&
                            absl::SimpleHexAtoi(path.substr(i + 1, 2), &byte);
    decoded.push_back(is_encoded ? static_cast<char>(byte) : path[i]);
    if (is_encoded) i += 2;
  }
  return decoded;
}

// gRPC ends the process where a header's value holds anything else.
bool MayBeShown(absl::string_view authorization) {
  return authorization.size() <= kMaxAuthorizationBytes &&
         std::all_of(authorization.begin(), authorization.end(),
                     [](char c) { return c >= ' ' && c <= '~'; });
}

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

HttpReply NoSuchModel(absl::string_view name, const v1::GetServerInfoResponse& info) {
  return OpenAiError(404,
                     absl::StrCat("the model \"", Excerpt(name, 100), "\" is not served, but \"",
                                  info.model_name(), "\""),
                     "model_not_found");
}

// One to each prompt, with a copy of the options. OUT_OF_RANGE: too many bytes.
absl::StatusOr<std::vector<v1::GenerateRequest>> RequestsOf(
    const std::vector<OpenAiPrompt>& prompts, const v1::GenerateRequest& options) {
  const size_t options_bytes = options.ByteSizeLong();
  if (options_bytes > kMaxOptionsBytes / std::max<size_t>(1, prompts.size())) {
    return absl::OutOfRangeError(absl::StrCat("options of ", options_bytes, " bytes for each of ",
                                              prompts.size(), " prompts: at most ",
                                              kMaxOptionsBytes, " together"));
  }
  std::vector<v1::GenerateRequest> requests;
  for (const OpenAiPrompt& prompt : prompts) {
    v1::GenerateRequest& one = requests.emplace_back(options);
    if (prompts.size() > 1 && !one.request_id().empty()) {
      one.set_request_id(absl::StrCat(one.request_id(), "-", requests.size() - 1));
    }
    if (prompt.token_ids.empty()) {
      one.set_text(prompt.text);
    } else {
      one.mutable_token_ids()->mutable_ids()->Assign(prompt.token_ids.begin(),
                                                     prompt.token_ids.end());
    }
    if (one.ByteSizeLong() > kMaxRequestBytes) {
      return absl::OutOfRangeError(absl::StrCat("a prompt takes ", one.ByteSizeLong(),
                                                " bytes: at most ", kMaxRequestBytes));
    }
  }
  return requests;
}

Json ModelJson(const v1::GetServerInfoResponse& info, int64_t created) {
  Json json = {{"id", ValidUtf8(info.model_name())},
               {"object", "model"},
               {"created", created},
               {"owned_by", "lockstep"}};
  if (info.max_model_len() > 0) json["max_model_len"] = info.max_model_len();
  return json;
}

}  // namespace

Awaitable<void> OpenAiService::Answer(HttpExchange& exchange) {
  const char* route = RouteOf(exchange.request().path);
  MeteredExchange metered(exchange, route, metrics_, log_.get());
  co_await Route(metered, route);
}

Awaitable<void> OpenAiService::Route(MeteredExchange& exchange, const char* route) {
  const std::string& path = exchange.request().path;
  const std::string& method = exchange.request().method;
  if (!MayBeShown(exchange.request().authorization)) {
    return exchange.Reply(
        OpenAiError(401, absl::StrCat("Authorization must be at most ", kMaxAuthorizationBytes,
                                      " printable ASCII characters")));
  }
  if (route == kOther) {
    return exchange.Reply(OpenAiError(
        404, absl::StrCat("there is no ", Excerpt(path, 100), ", but ", kCompletions, ", ",
                          kChatCompletions, ", ", kModels, ", ", kHealth, " and ", kMetricsPath)));
  }
  const bool is_completion = route == kCompletions || route == kChatCompletions;
  if (is_completion ? method != "POST" : method != "GET" && method != "HEAD") {
    HttpReply reply = OpenAiError(405, absl::StrCat(path, " takes no ", Excerpt(method, 20)));
    reply.allow = is_completion ? "POST" : "GET, HEAD";
    return exchange.Reply(std::move(reply));
  }
  if (is_completion) return AnswerCompletion(exchange, route == kChatCompletions);
  if (route == kHealth) return AnswerHealth(exchange);
  if (route == kMetricsPath) return AnswerMetrics(exchange);
  return AnswerModels(exchange);
}

// Whoever checks a server's health has no token.
Awaitable<void> OpenAiService::AnswerHealth(HttpExchange& exchange) {
  using grpc::health::v1::HealthCheckResponse;
  const auto stub = grpc::health::v1::Health::NewStub(connection_.channel());
  const auto health = co_await Call<HealthCheckResponse>(
      connection_, exchange, grpc::health::v1::HealthCheckRequest(),
      [&](auto... call) { stub->async()->Check(call...); });
  const bool serves = health.ok() && health->status() == HealthCheckResponse::SERVING;
  HttpReply reply = PlainReply(serves ? 200 : 503, serves ? "serving" : "not serving");
  co_await exchange.Reply(std::move(reply));
}

// Of the gateway alone while the server is away.
Awaitable<void> OpenAiService::AnswerMetrics(HttpExchange& exchange) {
  const auto info = co_await ServerInfo(exchange);
  const auto status = co_await ServerStatus(exchange);
  if (absl::IsUnauthenticated(info.status())) {
    co_await exchange.Reply(OpenAiError(info.status()));
    co_return;
  }
  MetricFamilies families;
  const bool is_up = info.ok() && status.ok();
  families.Gauge("lockstep_gateway_server_up", "1 while the server answers.", is_up ? 1 : 0);
  metrics_.AddTo(families);
  if (is_up) AddServerMetrics(*info, *status, families);
  HttpReply reply;
  reply.content_type = kMetricsContentType;
  reply.body = families.Text();
  co_await exchange.Reply(std::move(reply));
}

Awaitable<void> OpenAiService::AnswerModels(HttpExchange& exchange) {
  const auto info = co_await ServerInfo(exchange);
  if (!info.ok()) {
    co_await exchange.Reply(OpenAiError(info.status()));
    co_return;
  }
  const std::string& path = exchange.request().path;
  HttpReply reply;
  if (path == kModels) {
    reply.body = DumpJson({{"object", "list"}, {"data", {ModelJson(*info, started_)}}});
  } else if (DecodedPath(path) == absl::StrCat(kModels, "/", info->model_name())) {
    reply.body = DumpJson(ModelJson(*info, started_));
  } else {
    reply = NoSuchModel(DecodedPath(path).substr(sizeof(kModels)), *info);
  }
  co_await exchange.Reply(std::move(reply));
}

Awaitable<void> OpenAiService::AnswerCompletion(MeteredExchange& exchange, bool is_chat) {
  const HttpRequest& http = exchange.request();
  if (!IsJson(http.content_type)) {
    co_await exchange.Reply(OpenAiError(
        415, absl::StrCat("the body must be sent as Content-Type: application/json, not \"",
                          Excerpt(http.content_type, 60), "\"")));
    co_return;
  }
  // Before a body that may be long is parsed: who has no token is told that alone.
  const auto info = co_await ServerInfo(exchange);
  if (!info.ok()) {
    co_await exchange.Reply(OpenAiError(info.status()));
    co_return;
  }
  const auto request = is_chat ? ParseChatRequest(http.body) : ParseCompletionRequest(http.body);
  if (!request.ok()) {
    co_await exchange.Reply(OpenAiError(request.status()));
  } else if (!request->model.empty() && request->model != info->model_name()) {
    co_await exchange.Reply(NoSuchModel(request->model, *info));
  } else {
    co_await Complete(exchange, *request, *info);
  }
}

Awaitable<void> OpenAiService::Complete(MeteredExchange& exchange, const OpenAiRequest& request,
                                        const v1::GetServerInfoResponse& info) {
  std::vector<OpenAiPrompt> prompts = request.prompts;
  std::vector<EchoedPrompt> echoed;
  absl::Status status;
  v1::GenerateRequest options = request.options;
  AssistantForm form;
  if (request.is_chat) {
    auto chat = co_await WriteChat(exchange, request, options);
    status = chat.status();
    if (chat.ok()) {
      prompts.push_back({"", std::move(chat->token_ids)});
      form = chat->form;
    }
  }
  for (OpenAiPrompt& prompt : prompts) {
    if (!request.echo || !status.ok()) break;
    auto echo = co_await Echo(exchange, request, prompt);
    status = echo.status();
    if (echo.ok()) echoed.push_back(*std::move(echo));
  }
  if (!status.ok()) {
    co_await exchange.Reply(OpenAiError(status));
    co_return;
  }
  auto requests = RequestsOf(prompts, options);
  if (!requests.ok()) {
    co_await exchange.Reply(OpenAiError(413, requests.status().message()));
    co_return;
  }
  OpenAiReply reply(request, requests->size(), info.model_name(), absl::Now(), std::move(echoed),
                    form);
  CompletionRun run(connection_, request, reply, exchange, patience_);
  co_await run.Run(*std::move(requests));
  if (log_ != nullptr) exchange.Note(reply.LogFields());
}

OpenAiService::AwaitableOr<v1::GetServerInfoResponse> OpenAiService::ServerInfo(
    const HttpExchange& exchange) {
  co_return co_await Call<v1::GetServerInfoResponse>(
      connection_, exchange, v1::GetServerInfoRequest(),
      [&](auto... call) { connection_.stub().async()->GetServerInfo(call...); });
}

OpenAiService::AwaitableOr<v1::GetStatusResponse> OpenAiService::ServerStatus(
    const HttpExchange& exchange) {
  co_return co_await Call<v1::GetStatusResponse>(
      connection_, exchange, v1::GetStatusRequest(),
      [&](auto... call) { connection_.stub().async()->GetStatus(call...); });
}

OpenAiService::AwaitableOr<std::vector<int32_t>> OpenAiService::Tokenize(
    const HttpExchange& exchange, v1::TokenizeRequest request) {
  const auto response = co_await Call<v1::TokenizeResponse>(
      connection_, exchange, std::move(request),
      [&](auto... call) { connection_.stub().async()->Tokenize(call...); });
  if (!response.ok()) co_return response.status();
  co_return std::vector<int32_t>(response->token_ids().begin(), response->token_ids().end());
}

OpenAiService::AwaitableOr<std::string> OpenAiService::Detokenize(const HttpExchange& exchange,
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
// The template that a request wants, parsed again only when it is another one.
OpenAiService::AwaitableOr<std::shared_ptr<const ServedChatTemplate>>
OpenAiService::ChatTemplateFor(const HttpExchange& exchange, bool with_tools) {
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
OpenAiService::AwaitableOr<OpenAiService::ChatPrompt> OpenAiService::WriteChat(
    const HttpExchange& exchange, const OpenAiRequest& request, v1::GenerateRequest& options) {
  const auto chat_template = co_await ChatTemplateFor(exchange, !request.tool_names.empty());
  if (!chat_template.ok()) co_return chat_template.status();
  // Templates may take a second; others' streams go on meanwhile.
  const auto pieces = std::make_shared<absl::StatusOr<std::vector<TextPiece>>>();
  co_await AwaitCall([&](std::function<void(grpc::Status)> on_done) {
    boost::asio::post(renderer_, [chat = request.chat, continues = request.continues_message,
                                  chat_template = *chat_template, pieces,
                                  on_done = std::move(on_done)]() mutable {
      *pieces = continues ? chat_template->RenderToContinue(std::move(chat))
                          : chat_template->Render(std::move(chat));
      on_done(grpc::Status::OK);
    });
  });
  if (!pieces->ok()) co_return pieces->status();
  v1::TokenizeRequest tokenize = TokenizeRequestOf(**pieces);
  if (tokenize.ByteSizeLong() > kMaxRequestBytes) {
    co_return absl::InvalidArgumentError(absl::StrCat(
        "the conversation takes ", tokenize.ByteSizeLong(), " bytes: at most ", kMaxRequestBytes));
  }
  auto ids = co_await Tokenize(exchange, std::move(tokenize));
  if (!ids.ok()) co_return ids.status();
  ChatPrompt prompt{*std::move(ids), {}};
  // Whose answer has begun, does not think before it.
  const bool has_begun = request.continues_message && !(*pieces)->back().is_markup;
  if (!has_begun) prompt.form.thought = (*chat_template)->ThoughtAfter(**pieces);
  if (options.constraint().has_tool_calls()) {
    v1::ToolCalls& calls = *options.mutable_constraint()->mutable_tool_calls();
    calls.set_form(ToolCallFormOf((*chat_template)->source()));
    // Such a model begins its list with a special token, which is no text: where it may write any
    // text, that must not be kept from it.
    const bool is_kept = calls.required() || calls.form() != v1::ToolCalls::FORM_LIST;
    if (is_kept) prompt.form.calls = calls.form();
    if (!is_kept) options.clear_constraint();
  }
  if (options.has_constraint()) options.mutable_constraint()->set_thought(prompt.form.thought);
  co_return prompt;
}

// A prompt's first token has no log-probability, but a text: for it a text becomes token ids here.
OpenAiService::AwaitableOr<EchoedPrompt> OpenAiService::Echo(const HttpExchange& exchange,
                                                             const OpenAiRequest& request,
                                                             OpenAiPrompt& prompt) {
  EchoedPrompt echo{prompt.text, ""};
  if (!prompt.token_ids.empty()) {
    auto text = co_await Detokenize(exchange, prompt.token_ids);
    if (!text.ok()) co_return text.status();
    echo.text = *std::move(text);
  } else if (request.wants_logprobs()) {
    v1::TokenizeRequest tokenize;
    tokenize.set_text(prompt.text);
    tokenize.set_parse_special_tokens(request.options.parse_special_tokens());
    if (request.options.has_add_special_tokens()) {
      tokenize.set_add_special_tokens(request.options.add_special_tokens());
    }
    auto ids = co_await Tokenize(exchange, std::move(tokenize));
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
