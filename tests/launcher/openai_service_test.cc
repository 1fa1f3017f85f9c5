#include "launcher/gateway/openai_service.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/gateway/openai_error.h"
#include "tests/launcher/fake_server.h"
#include "tests/launcher/http_fixture.h"
#include "tests/support/temp_directory.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using testing::FakeServer;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::PostJson;
using testing::RawClient;
using testing::RunningHttpServer;

class OpenAiServiceTest : public ::testing::Test {
 protected:
  explicit OpenAiServiceTest(std::string chat_template = "") : fake_(std::move(chat_template)) {
    Open(fake_.address());
  }

  void Open(const std::string& address) {
    http_.reset();
    auto connection = Connection::Open({.server = address});
    ASSERT_TRUE(connection.ok()) << connection.status();
    connection_ = *std::move(connection);
    auto log = AccessLog::Open((directory_ / "access.log").string());
    ASSERT_TRUE(log.ok()) << log.status();
    service_ = std::make_unique<OpenAiService>(*connection_, absl::ZeroDuration(), *std::move(log));
    HttpServerOptions options;
    options.refusal = OpenAiRefusal;
    http_ = std::make_unique<RunningHttpServer>(
        options, [this](HttpExchange& exchange) { return service_->Answer(exchange); });
  }

  std::string Ask(const std::string& bytes) {
    RawClient client(http_->port());
    client.Send(bytes);
    return client.ReadAll();
  }
  std::string Complete(const std::string& body) { return Ask(PostJson("/v1/completions", body)); }
  std::string Chat(const std::string& content) {
    return Ask(PostJson("/v1/chat/completions",
                        R"({"messages": [{"role": "user", "content": ")" + content + R"("}]})"));
  }
  // The first that say so; fails after a while.
  std::string AwaitMetrics(const std::string& what) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    std::string answer = Get("/metrics");
    while (answer.find(what) == std::string::npos && absl::Now() < deadline) {
      answer = Get("/metrics");
    }
    EXPECT_THAT(answer, HasSubstr(what));
    return answer;
  }
  std::string Get(const std::string& path) {
    return Ask("GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  }

  // Of the log; waits until there are as many.
  std::vector<nlohmann::json> Logged(size_t count) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    std::vector<nlohmann::json> entries;
    do {
      entries.clear();
      std::ifstream file(directory_ / "access.log");
      for (std::string line; std::getline(file, line);) {
        entries.push_back(nlohmann::json::parse(line));
      }
    } while (entries.size() < count && absl::Now() < deadline);
    EXPECT_EQ(entries.size(), count);
    entries.resize(count);
    return entries;
  }

  testing::TempDirectory directory_;
  FakeServer fake_;
  std::unique_ptr<Connection> connection_;
  std::unique_ptr<OpenAiService> service_;
  std::unique_ptr<RunningHttpServer> http_;
};

TEST_F(OpenAiServiceTest, CompletesWhole) {
  const std::string answer = Complete(R"({"prompt": ["a", "b"], "max_tokens": 2, "n": 2})");
  EXPECT_THAT(answer, HasSubstr("200 OK"));
  EXPECT_THAT(answer, HasSubstr(R"({"index":3,"text":"t0 t1 ")"));
  EXPECT_THAT(answer, HasSubstr(R"("prompt_tokens":6)"));
}

TEST_F(OpenAiServiceTest, PathsMayEndWithASlash) {
  for (const char* path : {"/v1/models", "/v1/models/"}) {
    EXPECT_THAT(Get(path), AllOf(HasSubstr("\"object\":\"list\""), HasSubstr("\"root\":\"")));
  }
  EXPECT_THAT(Get("/health/"), HasSubstr("serving"));
  EXPECT_THAT(Ask(PostJson("/v1/completions/", R"({"prompt": "a", "max_tokens": 2})")),
              HasSubstr("200 OK"));
  EXPECT_THAT(Get("/v1/models//"), HasSubstr("404 Not Found"));
}

TEST_F(OpenAiServiceTest, CompressedBodiesAreRefusedByTheirCoding) {
  EXPECT_THAT(Ask("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                  "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"),
              AllOf(HasSubstr("415 Unsupported"), HasSubstr("Content-Encoding gzip")));
}

TEST_F(OpenAiServiceTest, EachRequestIsALineOfTheLog) {
  Complete(R"({"prompt": ["secret", "b"], "max_tokens": 2, "n": 2})");
  Complete(R"({"prompt": "a", "max_tokens": 2, "stream": true})");
  Complete(R"({"prompt": "refuse"})");
  Get("/no\xFF" + std::string(1000, '/') + "?secret");
  const std::vector<nlohmann::json> entries = Logged(4);
  const auto& whole = entries[0];
  EXPECT_THAT(whole.value("client", ""), HasSubstr("127.0.0.1:"));
  EXPECT_EQ(whole.value("method", ""), "POST");
  EXPECT_EQ(whole.value("path", ""), "/v1/completions");
  EXPECT_EQ(whole.value("status", 0), 200);
  EXPECT_EQ(whole.value("stream", true), false);
  EXPECT_EQ(whole.value("prompt_tokens", 0), 6);
  EXPECT_EQ(whole.value("completion_tokens", 0), 8);
  EXPECT_EQ(whole["request_ids"].size(), 2u);
  EXPECT_EQ(whole["finish_reasons"],
            nlohmann::json::parse(R"(["length", "length", "length", "length"])"));
  EXPECT_TRUE(whole["first_token_ms"].is_number());
  EXPECT_GT(whole.value("bytes_out", 0), 100);
  EXPECT_EQ(entries[1].value("stream", false), true);
  EXPECT_GT(entries[1].value("bytes_out", 0), 100);
  EXPECT_EQ(entries[2].value("status", 0), 429);
  EXPECT_TRUE(entries[2]["first_token_ms"].is_null());
  EXPECT_EQ(entries[3].value("status", 0), 404);
  EXPECT_LT(entries[3].value("path", "").size(), 300u);
  for (const auto& entry : entries) EXPECT_THAT(entry.dump(), Not(HasSubstr("secret")));
}

TEST(AccessLogTest, WhatCannotBeWrittenIsToldOnce) {
  EXPECT_THAT(std::string(AccessLog::Open("/no/such/log").status().message()),
              HasSubstr("/no/such/log"));
  const auto log = AccessLog::Open("/dev/full");
  ASSERT_TRUE(log.ok()) << log.status();
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) (*log)->Write({{"a", 1}});
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("access log /dev/full: lines are lost: No space left"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
}

// To open it would wait for a reader.
TEST(AccessLogTest, APipeThatNobodyReadsIsAnError) {
  const testing::TempDirectory directory;
  const std::string path = (directory / "pipe").string();
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(std::string(AccessLog::Open(path).status().message()), HasSubstr(path));
}

// As on a disk with room for one line and a half.
TEST(AccessLogTest, ATornLineIsEndedBeforeTheNext) {
  const testing::TempDirectory directory;
  const std::string path = (directory / "log").string();
  const auto log = AccessLog::Open(path);
  ASSERT_TRUE(log.ok()) << log.status();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit little = {.rlim_cur = 12, .rlim_max = before.rlim_max};
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  for (int i = 0; i < 2; ++i) (*log)->Write({{"a", 1}});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  (*log)->Write({{"a", 2}});
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  EXPECT_THAT(lines, ElementsAre(R"({"a":1})", R"({"a")", R"({"a":2})"));
}

TEST_F(OpenAiServiceTest, RequestsHaveTheNameThatTheyWereGiven) {
  EXPECT_THAT(Complete(R"({"prompt": "a", "request_id": "mine", "max_tokens": 1})"),
              HasSubstr(R"("id":"cmpl-mine")"));
  EXPECT_THAT(Complete(R"({"prompt": ["a", "b"], "request_id": "mine", "max_tokens": 1})"),
              HasSubstr(R"("id":"cmpl-mine-0")"));
  EXPECT_EQ(Logged(2)[1]["request_ids"], nlohmann::json({"mine-0", "mine-1"}));
}

TEST_F(OpenAiServiceTest, CompletesInPieces) {
  const std::string answer = Complete(
      R"({"prompt": "a", "max_tokens": 2, "stream": true, "stream_options": {"include_usage": true}})");
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/event-stream"));
  EXPECT_THAT(answer, HasSubstr(R"("text":"t0 ")"));
  EXPECT_THAT(answer, HasSubstr(R"("finish_reason":"length")"));
  EXPECT_THAT(answer, HasSubstr(R"("choices":[],"usage":{"prompt_tokens":3)"));
  EXPECT_THAT(answer, HasSubstr("data: [DONE]\n\n"));
  EXPECT_THAT(answer, EndsWith("0\r\n\r\n"));
}

TEST_F(OpenAiServiceTest, WhatTheServerRefusesHasItsStatus) {
  for (const char* stream : {"", R"(, "stream": true)"}) {
    const std::string answer = Complete(std::string(R"({"prompt": "refuse")") + stream + "}");
    EXPECT_THAT(answer, HasSubstr("429 Too Many Requests"));
    EXPECT_THAT(answer, HasSubstr("the queue is full"));
  }
  EXPECT_THAT(Complete(R"({"prompt": ["a", "refuse"], "max_tokens": 1})"), HasSubstr("429 "));
}

TEST_F(OpenAiServiceTest, WhatTheServerSaysOfAConstraintIsAnswered) {
  for (const char* stream : {"", R"(, "stream": true)"}) {
    const std::string answer =
        Complete(std::string(R"({"prompt": "a", "guided_regex": "(")") + stream + "}");
    EXPECT_THAT(answer, HasSubstr("400 Bad Request"));
    EXPECT_THAT(answer, HasSubstr(R"("message":"guided_regex: regex: \"(\"")"));
    EXPECT_THAT(answer, HasSubstr(R"("param":"guided_regex")"));
  }
}

TEST_F(OpenAiServiceTest, AnswersWithoutEndAreEnded) {
  const std::string whole = Complete(R"({"prompt": "flood"})");
  EXPECT_THAT(whole, HasSubstr("400 "));  // not 429, upon which clients would try it again
  EXPECT_THAT(whole, HasSubstr("the answer is longer than 67108864 bytes"));
  RawClient client(http_->port());  // and does not read
  client.Send(PostJson("/v1/completions", R"({"prompt": "flood", "stream": true})"));
  const std::string stream = client.ReadAll();
  EXPECT_THAT(stream, HasSubstr("the answer is longer than 67108864 bytes"));
  EXPECT_THAT(stream, HasSubstr("data: [DONE]"));
}

// What a client does not read stays at the server.
TEST_F(OpenAiServiceTest, WhoDoesNotReadIsNotReadFor) {
  RawClient client(http_->port());
  client.Send(PostJson("/v1/completions", R"({"prompt": "flood", "stream": true})"));
  client.ReadUntil("data: ");
  int64_t seen = -1;
  for (int64_t now = 0; seen != now; now = fake_.num_flooded()) {
    seen = now;
    absl::SleepFor(absl::Milliseconds(300));  // in which 64 MiB would come
  }
  EXPECT_GE(seen, 1);
  EXPECT_LT(seen, 40) << "of 64 it would be told that they are too many";
  EXPECT_THAT(client.ReadAll(), HasSubstr("the answer is longer than 67108864 bytes"));
}

TEST_F(OpenAiServiceTest, AStreamThatBreaksAfterItsLastEventIsComplete) {
  EXPECT_THAT(Complete(R"({"prompt": "break", "max_tokens": 1})"), HasSubstr("200 OK"));
}

// The server's call ends, else FakeServer would never.
TEST_F(OpenAiServiceTest, AClientThatGoesEndsItsCalls) {
  for (const char* stream : {"false", "true"}) {
    RawClient client(http_->port());
    client.Send(PostJson("/v1/completions",
                         std::string(R"({"prompt": "hang", "stream": )") + stream + "}"));
    if (std::string(stream) == "true") client.ReadUntil("t0 ");
  }
  EXPECT_TRUE(http_->AllEnd());
}

// Each of 256 prompts would have a copy.
TEST_F(OpenAiServiceTest, OptionsAreNotMultipliedByPromptsWithoutLimit) {
  const std::string prompts =
      R"({"prompt": [)" + absl::StrJoin(std::vector<const char*>(256, "\"a\""), ",") + "]";
  const std::string many = absl::StrJoin(std::vector<int>(70000, 1), ",");
  EXPECT_THAT(Complete(absl::StrCat(prompts, R"(, "stop_token_ids": [)", many, "]}")),
              HasSubstr("stop_token_ids has 70000 entries, at most 64"));
  EXPECT_THAT(
      Complete(absl::StrCat(prompts, R"(, "stop": ["")",
                            absl::StrJoin(std::vector<const char*>(17, ",\"\""), ""), "]}")),
      HasSubstr("stop has 18 entries, at most 16"));
  EXPECT_THAT(
      Complete(absl::StrCat(prompts, R"(, "cache_salt": ")", std::string(300000, 'a'), "\"}")),
      HasSubstr("413 "));
}

TEST_F(OpenAiServiceTest, WrongRequestsAreToldWhy) {
  EXPECT_THAT(Complete(R"({"prompt": "a", "n": "x"})"), HasSubstr("400 Bad Request"));
  EXPECT_THAT(Complete(R"({"prompt": "a", "model": "other"})"), HasSubstr("404 Not Found"));
  EXPECT_THAT(Complete(R"({"prompt": "a", "model": "fake", "max_tokens": 1})"),
              HasSubstr("200 OK"));
  EXPECT_THAT(
      Ask("POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n"
          "Content-Type: text/plain\r\n\r\n{}"),
      HasSubstr("415 Unsupported Media Type"));
  EXPECT_THAT(Get("/v1/completions"), HasSubstr("Allow: POST"));
  EXPECT_THAT(Get("/v1/nothing"), HasSubstr("404 Not Found"));
}

TEST_F(OpenAiServiceTest, TextsBecomeTokensAndTokensTexts) {
  EXPECT_THAT(Ask(PostJson("/tokenize", R"({"prompt": "a"})")),
              HasSubstr(R"({"count":1,"max_model_len":64,"tokens":[1],"token_strs":null})"));
  EXPECT_THAT(Ask(PostJson("/tokenize", R"({"prompt": "a", "model": "other"})")),
              HasSubstr("404 Not Found"));
  EXPECT_THAT(Ask(PostJson("/tokenize", R"({"messages": [{"role": "user", "content": "a"}]})")),
              HasSubstr("this model has no chat template"));
  EXPECT_THAT(
      Ask(PostJson("/tokenize", R"({"prompt": ")" + std::string((4 << 20) + 1, 'a') + R"("})")),
      HasSubstr("bytes: at most 4194304"));
  EXPECT_THAT(Ask(PostJson("/detokenize", R"({"tokens": [0, 1]})")),
              HasSubstr(R"({"prompt":"t0 t1 "})"));
  EXPECT_THAT(Get("/tokenize"), HasSubstr("Allow: POST"));
}

// Clients read errors as JSON, also those that nothing but HTTP knows of.
TEST_F(OpenAiServiceTest, WhatIsNotHttpOrTooLongIsToldWhyInJson) {
  const auto error = [&](const std::string& bytes) {
    const std::string answer = Ask(bytes);
    EXPECT_THAT(answer, HasSubstr("Content-Type: application/json\r\n"));
    return nlohmann::json::parse(answer.substr(answer.find("\r\n\r\n") + 4))["error"];
  };
  const auto no_host = error("GET /v1/models HTTP/1.1\r\n\r\n");
  EXPECT_EQ(no_host["type"], "invalid_request_error");
  EXPECT_EQ(no_host["message"], "not HTTP: no Host, or several");
  EXPECT_EQ(error("GET /v1/models HTTP/1.1\r\nHost: x\r\nA: " + std::string(20000, 'a') +
                  "\r\n\r\n")["message"],
            "the header is longer than 16384 bytes");
  EXPECT_EQ(error("POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                  "Content-Length: 100000000\r\n\r\n")["message"],
            "the body is longer than 8388608 bytes");
}

// gRPC would end the process for either.
TEST_F(OpenAiServiceTest, TokensThatGrpcCannotCarryAreRefused) {
  for (const std::string& token :
       {std::string("\xFF"), std::string("a\tb"), std::string(5000, 'a')}) {
    const std::string answer = Ask(PostJson("/v1/completions", R"({"prompt": "a"})",
                                            "Authorization: Bearer " + token + "\r\n"));
    EXPECT_THAT(answer, HasSubstr("401 Unauthorized"));
    EXPECT_THAT(answer, HasSubstr("printable ASCII"));
  }
}

TEST_F(OpenAiServiceTest, PromptsThatTheServerCannotTakeAreTooLarge) {
  EXPECT_THAT(Complete(R"({"prompt": ")" + std::string((4 << 20) + 1, 'a') + R"("})"),
              HasSubstr("413 Payload Too Large"));
}

TEST_F(OpenAiServiceTest, TellsWhatIsServed) {
  EXPECT_THAT(Get("/v1/models"), HasSubstr(R"("data":[{"id":"fake","object":"model")"));
  EXPECT_THAT(Get("/v1/models/fake"), HasSubstr(R"("max_model_len":64)"));
  EXPECT_THAT(Get("/v1/models/f%61ke"), HasSubstr(R"("max_model_len":64)"));
  for (const char* other : {"other", "fake%", "f%6", "f%zzke", "%2F"}) {
    EXPECT_THAT(Get(std::string("/v1/models/") + other), HasSubstr("404 Not Found")) << other;
  }
  EXPECT_THAT(Get("/health"), HasSubstr("503 "));  // it has no health service
}

TEST_F(OpenAiServiceTest, MetricsAreTheServersAndItsOwn) {
  Complete(R"({"prompt": "a", "max_tokens": 2})");
  Complete(R"({"prompt": "a", "max_tokens": 2, "stream": true})");
  Complete(R"({"prompt": "refuse"})");
  Get("/v1/models/other");
  Get("/..%2f\"}nonsense");
  const std::string answer = Get("/metrics");
  EXPECT_THAT(answer, HasSubstr("200 OK"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(answer, HasSubstr("lockstep_requests_accepted_total 4711\n"));
  EXPECT_THAT(answer, HasSubstr("lockstep_gateway_server_up 1\n"));
  EXPECT_THAT(answer, HasSubstr("lockstep_gateway_requests_running 1\n"));
  for (const char* counted :
       {R"({path="/v1/completions",code="200"} 2)", R"({path="/v1/completions",code="429"} 1)",
        R"({path="/v1/models",code="404"} 1)", R"({path="other",code="404"} 1)"}) {
    EXPECT_THAT(answer, HasSubstr(std::string("lockstep_gateway_requests_total") + counted));
  }
  EXPECT_THAT(Get("/metrics"), HasSubstr(R"({path="/metrics",code="200"} 1)"));
  EXPECT_THAT(Ask(PostJson("/metrics", "{}")), HasSubstr("405 Method Not Allowed"));
}

TEST_F(OpenAiServiceTest, AClientThatLeavesIsCountedWithoutACode) {
  {
    RawClient client(http_->port());
    client.Send(PostJson("/v1/completions", R"({"prompt": "hang"})"));
    AwaitMetrics("lockstep_gateway_requests_running 2");
  }
  const std::string answer = AwaitMetrics("lockstep_gateway_requests_running 1");
  EXPECT_THAT(answer, HasSubstr(R"({path="/v1/completions",code="0"} 1)"));
}

TEST_F(OpenAiServiceTest, AServerThatIsAwayIsNoSecretAndItsAddressIs) {
  std::string address;
  {
    FakeServer gone;
    address = gone.address();
  }
  Open(address);
  const std::string answer = Complete(R"({"prompt": "a"})");
  EXPECT_THAT(answer, HasSubstr("503 Service Unavailable"));
  EXPECT_THAT(answer, HasSubstr("does not answer"));
  EXPECT_THAT(answer, ::testing::Not(HasSubstr(address)));
  const std::string metrics = Get("/metrics");
  EXPECT_THAT(metrics, HasSubstr("lockstep_gateway_server_up 0\n"));
  EXPECT_THAT(metrics, HasSubstr(R"(lockstep_gateway_requests_total{path="/v1/completions")"));
  EXPECT_THAT(metrics, ::testing::Not(HasSubstr("lockstep_requests_accepted")));
}

TEST_F(OpenAiServiceTest, AChatNeedsATemplate) {
  EXPECT_THAT(Chat("Hi"), HasSubstr("400 Bad Request"));
  EXPECT_THAT(Chat("Hi"), HasSubstr("this model has no chat template"));
}

class OpenAiChatTest : public OpenAiServiceTest {
 protected:
  // Refuses who says so.
  OpenAiChatTest()
      : OpenAiServiceTest(
            "{{ bos_token }}{{ messages[0].content }}"
            "{% if 'endless' in messages[0].content %}{% for i in range(9999) %}"
            "{% for j in range(9999) %}x{% endfor %}{% endfor %}{% endif %}"
            "{{ raise_exception('No!') if 'refuse' in messages[0].content }}") {}
};

TEST_F(OpenAiChatTest, IsAnsweredByTheAssistant) { EXPECT_THAT(Chat("Hi"), HasSubstr("200 OK")); }

TEST_F(OpenAiChatTest, WhatTheTemplateRefusesIsTheClientsFault) {
  EXPECT_THAT(Chat("refuse"), HasSubstr("400 Bad Request"));
  EXPECT_THAT(Chat("refuse"), HasSubstr("the model's chat template refuses this: No!"));
  EXPECT_THAT(Chat("endless"), HasSubstr("400 Bad Request"));
  EXPECT_THAT(Chat("endless"), HasSubstr("chat template cannot be run on this: "));
}

class ThinkingChatTest : public OpenAiServiceTest {
 protected:
  // Of a model that was taught to mark its calls, and thinks where it is not told not to.
  ThinkingChatTest()
      : OpenAiServiceTest(
            "{{ messages[0].content }}{# </think> <tool_call> #}"
            "{% if enable_thinking is not defined %}<think>{{ '\\n' }}{% endif %}") {}

  std::string Say(const std::string& more) {
    return Ask(PostJson("/v1/chat/completions",
                        R"({"messages": [{"role": "user", "content": "Is it?"}])" + more + "}"));
  }
};

TEST_F(ThinkingChatTest, AnAnswerThatHasBegunDoesNotThinkBefore) {
  const auto continued = [&](const std::string& content) {
    return Ask(
        PostJson("/v1/chat/completions", R"({"messages": [{"role": "assistant", "content": ")" +
                                             content + R"("}], "continue_final_message": true})"));
  };
  EXPECT_THAT(continued("It is"), HasSubstr(R"("content":"So.\n</think>\n\nYes.")"));
}

TEST_F(ThinkingChatTest, ThoughtsComeApart) {
  EXPECT_THAT(Say(""), HasSubstr(R"("content":"Yes.","refusal":null,"reasoning_content":"So.")"));
  const std::string streamed = Say(R"(, "stream": true)");
  EXPECT_THAT(streamed, HasSubstr(R"("delta":{"reasoning_content":"So."})"));
  EXPECT_THAT(streamed, HasSubstr(R"("delta":{"content":"Yes."})"));
  EXPECT_THAT(Say(R"(, "chat_template_kwargs": {"enable_thinking": false})"),
              HasSubstr(R"("content":"So.\n</think>\n\nYes.")"));
}

TEST_F(ThinkingChatTest, ConstraintsHoldBehindThem) {
  const std::string regex = R"(, "structured_outputs": {"regex": "a"})";
  EXPECT_THAT(Say(regex), HasSubstr(R"(regex: \"a\" thought: THOUGHT_BEGUN)"));
  EXPECT_THAT(Say(regex + R"(, "chat_template_kwargs": {"enable_thinking": false})"),
              HasSubstr(R"(regex: \"a\" thought: THOUGHT_ALLOWED)"));
}

TEST_F(ThinkingChatTest, CallsThatMustBeMadeAreWrittenAsTheModelWasTaught) {
  const std::string answer = Say(
      R"(, "tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f"}}])");
  EXPECT_THAT(
      answer,
      HasSubstr(R"(tool_calls { form: FORM_MARKED functions { name: \"f\" } required: true })"
                R"( thought: THOUGHT_BEGUN)"));
}

TEST_F(ThinkingChatTest, OfStrictFunctionsCallsInTheTaughtFormAloneAreRead) {
  const std::string tools =
      R"(, "chat_template_kwargs": {"enable_thinking": false}, "tools": [{"type": "function",
         "function": {"name": "f", "strict": true}}])";
  const std::string marked = Say(tools);  // the answer is not
  EXPECT_THAT(marked, HasSubstr(R"("content":"{\"name\": \"f\", \"parameters\": {}}")"));
  EXPECT_THAT(marked, Not(HasSubstr("tool_calls")));
}

TEST_F(OpenAiChatTest, StrictFunctionsAreCalledByJson) {
  const std::string answer =
      Ask(PostJson("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "Hi"}],
      "tools": [{"type": "function", "function": {"name": "f", "strict": true}}]})"));
  EXPECT_THAT(answer, HasSubstr(R"("finish_reason":"tool_calls")"));
}

// Whose lists of calls begin with a special token.
class ListChatTest : public OpenAiServiceTest {
 protected:
  ListChatTest() : OpenAiServiceTest("{{ messages[0].content }}{# [TOOL_CALLS] #}") {}
  std::string Call(const std::string& choice) {
    return Ask(PostJson(
        "/v1/chat/completions",
        R"({"messages": [{"role": "user", "content": "Hi"}], "tool_choice": )" + choice +
            R"(, "tools": [{"type": "function", "function": {"name": "f", "strict": true}}]})"));
  }
};

TEST_F(ListChatTest, WhatKeepsAModelFromItsMarkerIsNotAskedFor) {
  EXPECT_THAT(Call(R"("auto")"), HasSubstr("200 OK"));
  EXPECT_THAT(Call(R"("required")"), HasSubstr("form: FORM_LIST"));
  EXPECT_THAT(Call(R"("auto", "response_format": {"type": "json_object"})"),
              AllOf(HasSubstr("json_schema: "), Not(HasSubstr("form: "))));
}

}  // namespace
}  // namespace lockstep
