// The clients' parts against a server that answers by rule.
#include <atomic>
#include <condition_variable>
#include <fstream>
#include <mutex>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/bench/load_generator.h"
#include "launcher/cli/add_command.h"
#include "launcher/client/generation_call.h"
#include "launcher/client/prompts.h"
#include "launcher/client/request_flags.h"
#include "launcher/client/response.h"
#include "tests/launcher/fake_server.h"
#include "tests/support/temp_directory.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using testing::FakeServer;
using ::testing::HasSubstr;

// Runs one call to its end.
struct Completed {
  Response response{absl::Now()};
  grpc::Status status;
};

class ClientTest : public ::testing::Test {
 protected:
  v1::GenerateRequest Request(const std::string& text, int max_tokens, int num_outputs = 1) {
    v1::GenerateRequest request;
    request.set_text(text);
    request.mutable_stop()->set_max_tokens(max_tokens);
    request.mutable_sampling()->set_num_outputs(num_outputs);
    return request;
  }

  std::unique_ptr<Completed> Run(v1::GenerateRequest request, bool cancel_at_first_token = false) {
    auto completed = std::make_unique<Completed>();
    std::mutex mutex;
    std::condition_variable changed;
    bool has_token = false;
    bool is_done = false;
    const auto on_event = [&](const v1::GenerateEvent& event) {
      std::lock_guard lock(mutex);
      completed->response.Add(event, absl::Now());
      has_token |= event.has_delta();
      changed.notify_all();
      return true;
    };
    const auto on_done = [&](const grpc::Status& status) {
      std::lock_guard lock(mutex);
      completed->status = status;
      is_done = true;
      changed.notify_all();
    };
    GenerationCall call(*connection_, std::move(request), absl::Seconds(30), {on_event, on_done});
    std::unique_lock lock(mutex);
    if (cancel_at_first_token) {
      changed.wait(lock, [&] { return has_token; });
      call.Cancel();
    }
    changed.wait(lock, [&] { return is_done; });
    return completed;
  }

  FakeServer server_;
  std::unique_ptr<Connection> connection_ = *Connection::Open({.server = server_.address()});
};

TEST_F(ClientTest, FoldsAStreamIntoOutputs) {
  const auto completed = Run(Request("hi", 3, 2));
  ASSERT_TRUE(completed->status.ok());
  ASSERT_EQ(completed->response.outputs().size(), 2u);
  EXPECT_EQ(completed->response.outputs()[1].text, "t0 t1 t2 ");
  EXPECT_THAT(completed->response.outputs()[1].token_ids, ElementsAre(0, 1, 2));
  EXPECT_EQ(completed->response.num_output_tokens(), 6);
}

TEST_F(ClientTest, JsonHoldsEverythingAndIsValidWhateverTheBytes) {
  const auto json = Run(Request("hi", 2))->response.ToJson();
  EXPECT_EQ(json["num_prompt_tokens"], 3);
  EXPECT_EQ(json["outputs"][0]["finish_reason"], "length");
  EXPECT_EQ(json["outputs"][0]["logprobs"][1]["token_id"], 1);
  EXPECT_EQ(json["outputs"][0]["logprobs"][1]["text"], "\xEF\xBF\xBD");
  EXPECT_EQ(json["outputs"][0]["logprobs"][1]["logprob"], -0.1f);
  EXPECT_NO_THROW(json.dump());
}

TEST_F(ClientTest, CancelEndsAStreamThatWouldNotEnd) {
  const auto completed = Run(Request("hang", 2), /*cancel_at_first_token=*/true);
  EXPECT_EQ(completed->status.error_code(), grpc::StatusCode::CANCELLED);
}

// After the first event nothing comes until it is asked for, of a cancelled call, too.
TEST_F(ClientTest, WhoDoesNotReadOnGetsNothing) {
  for (const bool cancels : {false, true}) {
    absl::Notification first, done;
    std::atomic<int> num_events = 0;
    grpc::Status ended;
    const auto on_event = [&](const v1::GenerateEvent&) {
      if (++num_events > 1) return true;
      first.Notify();
      return false;
    };
    const auto on_done = [&](const grpc::Status& status) {
      ended = status;
      done.Notify();
    };
    GenerationCall call(*connection_, Request("hi", 3), absl::InfiniteDuration(),
                        {on_event, on_done});
    first.WaitForNotification();
    if (cancels) call.Cancel();
    EXPECT_FALSE(done.WaitForNotificationWithTimeout(absl::Milliseconds(20)));
    EXPECT_EQ(num_events, 1);
    call.ReadOn();
    done.WaitForNotification();
    EXPECT_EQ(ended.ok(), !cancels) << ended.error_message();
    EXPECT_TRUE(cancels || num_events == 1 + 3 + 1) << num_events;
  }
}

// As servers take only so many calls of one TCP connection.
TEST_F(ClientTest, ManyStreamsHaveSeveralConnections) {
  std::vector<std::shared_ptr<v1::Generation::Stub>> streams;
  for (int i = 0; i < 4000; ++i) {
    streams.push_back(connection_->StreamStub());
    ASSERT_EQ(streams.back().get(), &connection_->stub());
  }
  const auto further = connection_->StreamStub();
  EXPECT_NE(further.get(), &connection_->stub());
  EXPECT_EQ(connection_->StreamStub(), further);
  streams.pop_back();
  EXPECT_EQ(connection_->StreamStub().get(), &connection_->stub());
  grpc::ClientContext context;
  v1::GetServerInfoResponse response;
  EXPECT_TRUE(further->GetServerInfo(&context, {}, &response).ok());
}

TEST_F(ClientTest, WhatAServerSaysOfConnectionsIsItsOwnWord) {
  const char* const words = "the ranks' daemons cannot connect to each other: see --network";
  EXPECT_EQ(connection_->Explain({grpc::StatusCode::UNAVAILABLE, words}).message(), words);
}

TEST_F(ClientTest, ServersErrorsComeThroughAndMissingServersAreExplained) {
  const auto refused = Run(Request("refuse", 1));
  EXPECT_THAT(std::string(connection_->Explain(refused->status).message()),
              HasSubstr("queue is full"));
  const auto nobody = Connection::Open({.server = "127.0.0.1:1"});
  const auto info = (*nobody)->GetServerInfo(absl::Seconds(10));
  EXPECT_THAT(std::string(info.status().message()), HasSubstr("lockstep serve MODEL"));
}

TEST_F(ClientTest, UnsetFlagsAreLeftToTheServer) {
  RequestFlags flags;
  const auto nothing = MakeRequest(flags);
  EXPECT_FALSE(nothing->sampling().has_temperature());
  EXPECT_FALSE(nothing->stop().has_max_tokens());
  flags.temperature = 0.0f;
  flags.stop_token_ids = "5,6";
  flags.logit_bias = {"7:-1.5"};
  const auto request = MakeRequest(flags);
  EXPECT_TRUE(request->sampling().has_temperature());
  EXPECT_THAT(request->stop().stop_token_ids(), ElementsAre(5, 6));
  EXPECT_EQ(request->sampling().logit_bias().at(7), -1.5f);
  flags.logit_bias = {"7"};
  EXPECT_FALSE(MakeRequest(flags).ok());
}

TEST_F(ClientTest, ASchemaIsAFileOrItself) {
  const testing::TempDirectory scratch;
  RequestFlags flags;
  flags.json_schema = (scratch / "schema.json").string();
  EXPECT_EQ(MakeRequest(flags).status().code(), absl::StatusCode::kNotFound);
  std::ofstream(flags.json_schema) << "{\"z\": {}}\n";
  EXPECT_EQ(MakeRequest(flags)->constraint().json_schema(), "{\"z\": {}}\n");
  std::ofstream(flags.json_schema) << std::string(65537, ' ');
  EXPECT_EQ(MakeRequest(flags).status().code(), absl::StatusCode::kInvalidArgument);
  std::ofstream(flags.json_schema) << "\xFF";
  EXPECT_THAT(std::string(MakeRequest(flags).status().message()), HasSubstr("is not UTF-8"));
  flags.json_schema = "\n {\"a\": {}}";
  EXPECT_EQ(MakeRequest(flags)->constraint().json_schema(), flags.json_schema);
}

TEST_F(ClientTest, PatternsAndChoicesAreConstraints) {
  RequestFlags flags;
  EXPECT_FALSE(MakeRequest(flags)->has_constraint());
  flags.regex = "a+";
  EXPECT_EQ(MakeRequest(flags)->constraint().regex(), "a+");
  flags.regex = "";
  flags.choices = {"yes", "[no]"};
  EXPECT_THAT(MakeRequest(flags)->constraint().choices().texts(), ElementsAre("yes", "[no]"));
}

// `lockstep generate ARGUMENTS` with the flags of prompts and requests.
class FlagsTest : public ::testing::Test {
 protected:
  FlagsTest() {
    CLI::App* command = program_.add_subcommand("generate");
    AddPromptFlags(*command, prompts_);
    AddSamplingFlags(*command, request_);
    AddStopFlags(*command, request_);
    AddConstraintFlags(*command, request_);
    AddOutputFlags(*command, request_);
  }
  // Whether they are accepted.
  bool Parse(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), {"lockstep", "generate"});
    prompts_ = {};
    request_ = {};
    try {
      program_.parse(
          ArgumentsForParse(program_, static_cast<int>(arguments.size()), arguments.data()));
      return true;
    } catch (const CLI::ParseError&) {
      return false;
    }
  }

  CLI::App program_;
  PromptSources prompts_;
  RequestFlags request_;
};

TEST_F(FlagsTest, PromptsAndStopTextsAreTakenAsTheyAre) {
  for (const char* text : {"[INST] Hello, tell me [/INST]", "[1,2,3]", "[a,b]", "[]", "{}", "",
                           "%%", "a b", "generate", "x=y", "--=", "-1"}) {
    SCOPED_TRACE(text);
    ASSERT_TRUE(Parse({"--stop", text, "--", text, "two"}));
    EXPECT_THAT(prompts_.texts, ElementsAre(text, "two"));
    EXPECT_THAT(request_.stop_strings, ElementsAre(text));
  }
  ASSERT_TRUE(Parse({"[a,b]", "", "generate", "--stop=[a,b]", "--stop=--n=", "[]"}));
  EXPECT_THAT(prompts_.texts, ElementsAre("[a,b]", "", "generate", "[]"));
  EXPECT_THAT(request_.stop_strings, ElementsAre("[a,b]", "--n="));
  ASSERT_TRUE(Parse({"a", "--", "-b", "++", "--stop="}));
  EXPECT_THAT(prompts_.texts, ElementsAre("a", "-b", "++", "--stop="));
}

TEST_F(FlagsTest, ARepeatedFlagTakesOneArgumentEachTime) {
  ASSERT_TRUE(Parse({"--stop", "a", "one", "--stop=b", "two", "--logit-bias", "1:2", "three",
                     "--token-ids", "4,5", "four", "--logit-bias=6:7", "five"}));
  EXPECT_THAT(prompts_.texts, ElementsAre("one", "two", "three", "four", "five"));
  EXPECT_THAT(request_.stop_strings, ElementsAre("a", "b"));
  EXPECT_THAT(request_.logit_bias, ElementsAre("1:2", "6:7"));
  EXPECT_THAT(prompts_.token_ids, ElementsAre("4,5"));
}

TEST_F(FlagsTest, AnEmptyValueIsNotTheNextArgument) {
  ASSERT_TRUE(Parse({"--cache-salt=", "one", "--stop=", "two", "--stop", "--stop=", "three"}));
  EXPECT_THAT(prompts_.texts, ElementsAre("one", "two", "three"));
  EXPECT_THAT(request_.stop_strings, ElementsAre("", "--stop="));
  EXPECT_EQ(request_.cache_salt, "");
}

TEST_F(FlagsTest, UnknownFlagsAndMissingValuesAreRefused) {
  EXPECT_FALSE(Parse({"one", "--frobnicate"}));
  EXPECT_FALSE(Parse({"one", "--stop"}));
  EXPECT_FALSE(Parse({"-x"}));
}

TEST_F(FlagsTest, TheTextIsConstrainedInOneWay) {
  ASSERT_TRUE(Parse({"--choice", "[a,b]", "one", "--choice=--regex", "two"}));
  EXPECT_THAT(request_.choices, ElementsAre("[a,b]", "--regex"));
  EXPECT_THAT(prompts_.texts, ElementsAre("one", "two"));
  ASSERT_TRUE(Parse({"--json-schema", R"({"a": [1, 2]})", "one"}));
  EXPECT_EQ(request_.json_schema, R"({"a": [1, 2]})");
  ASSERT_TRUE(Parse({"--regex", "[a,b]", "one"}));
  EXPECT_EQ(request_.regex, "[a,b]");
  const std::vector<std::vector<const char*>> all = {
      {"--choice", "a"}, {"--regex", "a"}, {"--json-schema", "{}"}};
  for (const auto& first : all) {
    for (const auto& second : all) {
      if (&first == &second) continue;
      EXPECT_FALSE(Parse({first[0], first[1], second[0], second[1], "one"}))
          << first[0] << " " << second[0];
    }
  }
}

TEST_F(FlagsTest, NumbersAreDecimalAndWithinTheirType) {
  for (const char* seed : {"0", "5", "18446744073709551615"}) {
    ASSERT_TRUE(Parse({"--seed", seed})) << seed;
    EXPECT_EQ(absl::StrCat(*request_.seed), seed);
  }
  for (const char* text :
       {"-5", "18446744073709551616", "010", "00", "0x10", "1e3", "+5", " 5", ""}) {
    EXPECT_FALSE(Parse({"--seed", text})) << text;
  }
  for (const char* flag : {"--top-k", "--n", "--max-tokens", "--min-tokens", "--logprobs",
                           "--prompt-logprobs", "--priority"}) {
    SCOPED_TRACE(flag);
    EXPECT_TRUE(Parse({flag, "10"}));
    for (const char* text : {"010", "-010", "0x10", "2147483648", "1.5", ""}) {
      EXPECT_FALSE(Parse({flag, text})) << text;
    }
  }
}

TEST_F(FlagsTest, EmptyValuesAreRefusedAndEmptyPromptsAreNot) {
  RefuseEmptyValues(program_);
  for (const char* flag : {"--temperature", "--cache-salt", "--stop", "--prompt-file"}) {
    EXPECT_FALSE(Parse({flag, ""})) << flag;
    EXPECT_TRUE(Parse({flag, "1", "", "--ignore-eos"})) << flag;
  }
}

TEST_F(FlagsTest, LinesOfAFileAreItsPromptsWhateverEndsThem) {
  const testing::TempDirectory scratch;
  prompts_.file = (scratch / "prompts.txt").string();
  prompts_.one_per_line = true;
  std::ofstream(prompts_.file) << "one\r\n\r\ntwo \nthree\r";
  const auto prompts = ReadPrompts(prompts_);
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  std::vector<std::string> texts;
  for (const Prompt& prompt : *prompts) texts.push_back(prompt.shown);
  EXPECT_THAT(texts, ElementsAre("one", "two ", "three"));
}

class LoadGeneratorTest : public ClientTest {
 protected:
  BenchReport Load(const LoadShape& shape, WorkloadOptions options) {
    const Workload workload(std::move(options));
    LoadGenerator generator(*connection_, workload, absl::Seconds(30), interrupts_, nullptr);
    return generator.Run(shape, 0).Report({});
  }
  static WorkloadOptions FourTokens() {
    WorkloadOptions options;
    options.output_len = {4, 4};
    options.vocab_size = 100;
    return options;
  }
  InterruptWatcher interrupts_;
};

TEST_F(LoadGeneratorTest, ClosedLoopCompletesEveryRequest) {
  const BenchReport report = Load({.num_requests = 20, .concurrency = 3}, FourTokens());
  EXPECT_EQ(report.num_completed, 20);
  EXPECT_EQ(report.num_failed, 0);
  EXPECT_EQ(report.output_tokens, 80);
  EXPECT_EQ(report.input_tokens, 60);
  EXPECT_EQ(report.itl_ms.count, 60);
}

TEST_F(LoadGeneratorTest, OpenLoopSendsAtItsRate) {
  const BenchReport report = Load(
      {.num_requests = 10, .rate = 200.0, .arrivals = ArrivalClock::Process::kFixed}, FourTokens());
  EXPECT_EQ(report.num_completed, 10);
  EXPECT_GE(report.seconds, 0.045);  // nine gaps of 5 ms
}

TEST_F(LoadGeneratorTest, DurationEndsTheSending) {
  const BenchReport report =
      Load({.duration = absl::Milliseconds(500), .concurrency = 2}, FourTokens());
  EXPECT_GT(report.num_completed, 0);
}

TEST_F(LoadGeneratorTest, FailuresAreCountedByCode) {
  WorkloadOptions options = FourTokens();
  options.prompts = {{"refuse", {}, 0}, {"hi", {}, 0}};
  const BenchReport report = Load({.num_requests = 10, .concurrency = 2}, options);
  EXPECT_EQ(report.num_completed, 5);
  EXPECT_EQ(report.errors.at("RESOURCE_EXHAUSTED"), 5);
}

TEST(RequestFlagsTest, WhatTheServerRefusesIsNamedByItsFlag) {
  EXPECT_EQ(WithFlagNames("sampling.num_outputs 65 is outside [1, 64]"),
            "--n 65 is outside [1, 64]");
  EXPECT_EQ(WithFlagNames("sampling.top_k -1 is outside [0, 9]"), "--top-k -1 is outside [0, 9]");
  EXPECT_EQ(WithFlagNames("stop.stop_strings[1] has 300 bytes"), "--stop[1] has 300 bytes");
  EXPECT_EQ(WithFlagNames("constraint.regex: at byte 1: look-ahead"),
            "--regex: at byte 1: look-ahead");
  EXPECT_EQ(WithFlagNames("top_p is 2, must be in (0, 1]"), "--top-p is 2, must be in (0, 1]");
  EXPECT_EQ(WithFlagNames("the queue is full"), "the queue is full");
}

}  // namespace
}  // namespace lockstep
