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

constexpr char kCompletions[] = "/v1/completions";
constexpr char kChatCompletions[] = "/v1/chat/completions";
constexpr char kTokenize[] = "/tokenize";
constexpr char kDetokenize[] = "/detokenize";
constexpr char kModels[] = "/v1/models";  // and what is below it
constexpr char kHealth[] = "/health";
constexpr char kOther[] = "other";
constexpr size_t kMaxOptionsBytes = 64 << 20;  // of all prompts of a request
constexpr size_t kMaxBodyAtOnce = 64 << 10;    // of a body: some milliseconds
constexpr size_t kMaxAuthorizationBytes = ApiTokens::kMaxTokenBytes + 16;

bool IsJson(absl::string_view content_type) {
  const absl::string_view type = content_type.substr(0, content_type.find(';'));
  return absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(type), "application/json");
}

// Clients join paths to a base that may end with a slash.
absl::string_view WithoutSlash(absl::string_view path) {
  return path.size() > 1 && path.back() == '/' ? path.substr(0, path.size() - 1) : path;
}

const char* RouteOf(absl::string_view path) {
  for (const char* route :
       {kCompletions, kChatCompletions, kTokenize, kDetokenize, kModels, kHealth, kMetricsPath}) {
    if (path == route) return route;
  }
  return absl::StartsWith(path, absl::StrCat(kModels, "/")) ? kModels : kOther;
}

// Of the body that it takes; null: it takes none.
absl::StatusOr<OpenAiRequest> (*ParserOf(const char* route))(absl::string_view) {
  if (route == kCompletions) return ParseCompletionRequest;
  if (route == kChatCompletions) return ParseChatRequest;
  if (route == kTokenize) return ParseTokenizeRequest;
  return route == kDetokenize ? ParseDetokenizeRequest : nullptr;
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
    if (one.ByteSizeLong() > kMaxUpstreamBytes) {
      return absl::OutOfRangeError(absl::StrCat("a prompt takes ", one.ByteSizeLong(),
                                                " bytes: at most ", kMaxUpstreamBytes));
    }
  }
  return requests;
}

Json ModelJson(const v1::GetServerInfoResponse& info, int64_t created) {
  Json json = {{"id", ValidUtf8(info.model_name())},
               {"object", "model"},
               {"created", created},
               {"owned_by", "lockstep"},
               // As vLLM's, for clients that look for them.
               {"root", ValidUtf8(info.model_name())},
               {"parent", nullptr}};
  if (info.max_model_len() > 0) json["max_model_len"] = info.max_model_len();
  return json;
}

}  // namespace

Awaitable<void> OpenAiService::Answer(HttpExchange& exchange) {
  const char* route = RouteOf(WithoutSlash(exchange.request().path));
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
    return exchange.Reply(
        OpenAiError(404, absl::StrCat("there is no ", Excerpt(path, 100), ", but ", kCompletions,
                                      ", ", kChatCompletions, ", ", kTokenize, ", ", kDetokenize,
                                      ", ", kModels, ", ", kHealth, " and ", kMetricsPath)));
  }
  const bool is_post = ParserOf(route) != nullptr;
  if (is_post ? method != "POST" : method != "GET" && method != "HEAD") {
    HttpReply reply = OpenAiError(405, absl::StrCat(path, " takes no ", Excerpt(method, 20)));
    reply.allow = is_post ? "POST" : "GET, HEAD";
    return exchange.Reply(std::move(reply));
  }
  if (is_post) return AnswerPost(exchange, route);
  if (route == kHealth) return AnswerHealth(exchange);
  if (route == kMetricsPath) return AnswerMetrics(exchange);
  return AnswerModels(exchange);
}

Awaitable<void> OpenAiService::AnswerHealth(HttpExchange& exchange) {
  const bool serves = co_await server_.Serves(exchange);
  HttpReply reply = PlainReply(serves ? 200 : 503, serves ? "serving" : "not serving");
  co_await exchange.Reply(std::move(reply));
}

// Of the gateway alone while the server is away.
Awaitable<void> OpenAiService::AnswerMetrics(HttpExchange& exchange) {
  const auto info = co_await server_.ServerInfo(exchange);
  const auto status = co_await server_.ServerStatus(exchange);
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
  const auto info = co_await server_.ServerInfo(exchange);
  if (!info.ok()) {
    co_await exchange.Reply(OpenAiError(info.status()));
    co_return;
  }
  const absl::string_view path = WithoutSlash(exchange.request().path);
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

Awaitable<void> OpenAiService::AnswerPost(MeteredExchange& exchange, const char* route) {
  const HttpRequest& http = exchange.request();
  if (!IsJson(http.content_type)) {
    co_await exchange.Reply(OpenAiError(
        415, absl::StrCat("the body must be sent as Content-Type: application/json, not \"",
                          Excerpt(http.content_type, 60), "\"")));
    co_return;
  }
  // Before a body that may be long is read: who has no token is told that alone.
  const auto info = co_await server_.ServerInfo(exchange);
  if (!info.ok()) {
    co_await exchange.Reply(OpenAiError(info.status()));
    co_return;
  }
  std::optional<HttpReply> refusal = co_await exchange.ReadBody();
  if (refusal) {
    co_await exchange.Reply(*std::move(refusal));
    co_return;
  }
  const auto request = co_await Parse(exchange, route);
  if (!request.ok()) {
    co_await exchange.Reply(OpenAiError(request.status()));
  } else if (!request->model.empty() && request->model != info->model_name()) {
    co_await exchange.Reply(NoSuchModel(request->model, *info));
  } else if (route == kTokenize) {
    co_await AnswerTokenize(exchange, *request, *info);
  } else if (route == kDetokenize) {
    co_await AnswerDetokenize(exchange, *request);
  } else {
    co_await Complete(exchange, *request, *info);
  }
}

Awaitable<absl::StatusOr<OpenAiRequest>> OpenAiService::Parse(HttpExchange& exchange,
                                                              const char* route) {
  const std::string& body = exchange.request().body;
  if (body.size() <= kMaxBodyAtOnce) co_return ParserOf(route)(body);
  absl::StatusOr<OpenAiRequest> request;
  const absl::Status ran =
      co_await side_thread_.RunIfSoon(exchange, [&] { request = ParserOf(route)(body); });
  if (!ran.ok()) co_return ran;
  co_return request;
}

Awaitable<void> OpenAiService::AnswerTokenize(HttpExchange& exchange, const OpenAiRequest& request,
                                              const v1::GetServerInfoResponse& info) {
  absl::StatusOr<std::vector<int32_t>> ids;
  if (request.is_chat) {
    v1::GenerateRequest options;
    auto chat = co_await server_.WriteChat(exchange, request, options);
    if (chat.ok()) {
      ids = std::move(chat->token_ids);
    } else {
      ids = chat.status();
    }
  } else {
    ids = co_await server_.TokenizePrompt(exchange, request, request.prompts.front().text);
  }
  HttpReply reply;
  if (ids.ok()) {
    reply.body = DumpJson({{"count", ids->size()},
                           {"max_model_len", info.max_model_len()},
                           {"tokens", *ids},
                           {"token_strs", nullptr}});
  } else {
    reply = OpenAiError(ids.status());
  }
  co_await exchange.Reply(std::move(reply));
}

Awaitable<void> OpenAiService::AnswerDetokenize(HttpExchange& exchange,
                                                const OpenAiRequest& request) {
  auto text = co_await server_.Detokenize(exchange, request.prompts.front().token_ids);
  HttpReply reply;
  if (text.ok()) {
    reply.body = DumpJson({{"prompt", *text}});
    text->clear();
    text->shrink_to_fit();  // it may be long, and the client slow
  } else {
    reply = OpenAiError(text.status());
  }
  co_await exchange.Reply(std::move(reply));
}

Awaitable<void> OpenAiService::Complete(MeteredExchange& exchange, const OpenAiRequest& request,
                                        const v1::GetServerInfoResponse& info) {
  std::vector<OpenAiPrompt> prompts = request.prompts;
  std::vector<EchoedPrompt> echoed;
  absl::Status status;
  v1::GenerateRequest options = request.options;
  AssistantForm form;
  if (request.is_chat) {
    auto chat = co_await server_.WriteChat(exchange, request, options);
    status = chat.status();
    if (chat.ok()) {
      prompts.push_back({"", std::move(chat->token_ids)});
      form = chat->form;
    }
  }
  for (OpenAiPrompt& prompt : prompts) {
    if (!request.echo || !status.ok()) break;
    auto echo = co_await server_.Echo(exchange, request, prompt);
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
  CompletionRun run(connection_, request, reply, exchange, side_thread_, patience_);
  co_await run.Run(*std::move(requests));
  if (log_ != nullptr) exchange.Note(reply.LogFields());
}

}  // namespace lockstep
