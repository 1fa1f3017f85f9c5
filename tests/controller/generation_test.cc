// What a client sees of lockstep.v1.Generation.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/controller/controller_fixture.h"
#include "tests/support/read_file.h"
#include "tests/support/temp_directory.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

class GenerationTest : public ControllerTest {};

TEST_F(GenerationTest, StreamsTheModelsTokensAndTheirText) {
  Serve();
  v1::GenerateRequest request = Request("hello", 20);
  request.set_request_id("mine");
  const Generated generated = Generate(request);
  ASSERT_TRUE(generated.status.ok()) << generated.status.error_message();
  EXPECT_TRUE(generated.accepted_came_first);
  EXPECT_EQ(generated.accepted->request_id(), "mine");
  EXPECT_EQ(generated.accepted->seed(), 5u);
  EXPECT_EQ(generated.accepted->max_tokens(), 20);
  EXPECT_EQ(generated.accepted->num_outputs(), 1);
  const Output& output = generated.outputs.at(0);
  EXPECT_EQ(output.ids, ExpectedIds(request, 5));
  EXPECT_EQ(output.text, Decode(output.ids));
  EXPECT_EQ(output.finished->reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(generated.usage->num_output_tokens(), 20);
  EXPECT_EQ(generated.usage->num_prompt_tokens(), generated.accepted->num_prompt_tokens());
  EXPECT_TRUE(IsIdle());
}

TEST_F(GenerationTest, PromptTokensAreTakenAsTheyAre) {
  Serve();
  v1::GenerateRequest by_text = Request("hello", 10);
  v1::GenerateRequest by_ids = Request("", 10);
  const std::vector<int32_t> ids = *tokenizer_->Encode("hello", {});
  by_ids.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  EXPECT_EQ(Generate(by_ids).outputs.at(0).ids, Generate(by_text).outputs.at(0).ids);
}

TEST_F(GenerationTest, ATextMayHaveItsOwnBos) {
  Serve();
  v1::GenerateRequest by_text = Request("hello", 10);
  by_text.set_add_special_tokens(false);
  v1::GenerateRequest by_ids = Request("", 10);
  const std::vector<int32_t> ids = *tokenizer_->Encode("hello", {.add_special_tokens = false});
  by_ids.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  const Generated generated = Generate(by_text);
  EXPECT_EQ(generated.accepted->num_prompt_tokens(), std::ssize(ids));
  EXPECT_EQ(generated.outputs.at(0).ids, Generate(by_ids).outputs.at(0).ids);
  by_text.set_add_special_tokens(true);
  EXPECT_EQ(Generate(by_text).accepted->num_prompt_tokens(), std::ssize(ids) + 1);
}

TEST_F(GenerationTest, EveryLayoutStreamsTheSame) {
  Serve(2, 2);
  const v1::GenerateRequest request = Request("hello", 30);
  EXPECT_EQ(Generate(request).outputs.at(0).ids, ExpectedIds(request, 5));
}

TEST_F(GenerationTest, OutputsAreIndependent) {
  Serve();
  v1::GenerateRequest request = Request("hello", 12);
  request.mutable_sampling()->set_num_outputs(3);
  const Generated generated = Generate(request);
  ASSERT_TRUE(generated.status.ok()) << generated.status.error_message();
  ASSERT_EQ(generated.outputs.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(generated.outputs.at(i).ids, ExpectedIds(request, 5, i));
    EXPECT_TRUE(generated.outputs.at(i).finished);
  }
  EXPECT_EQ(generated.usage->num_output_tokens(), 36);
  EXPECT_EQ(generated.usage->num_cached_prompt_tokens(), 0);  // what it computed itself
  EXPECT_EQ(Generate(request).usage->num_cached_prompt_tokens(), kBlockSize);
}

TEST_F(GenerationTest, EosEndsTheOutputAndIsNotInItsText) {
  Serve();
  v1::GenerateRequest request = Request("hello", 90);
  request.mutable_stop()->set_ignore_eos(false);
  for (uint64_t seed = 0; seed < 200; ++seed) {  // find one that meets EOS soon
    request.mutable_sampling()->set_seed(seed);
    if (ExpectedIds(request, seed).back() == kEos) break;
  }
  const Generated generated = Generate(request);
  const Output& output = generated.outputs.at(0);
  ASSERT_EQ(output.ids, ExpectedIds(request, request.sampling().seed()));
  EXPECT_EQ(output.finished->reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(output.finished->stop_token_id(), kEos);
  EXPECT_EQ(output.text, Decode(output.ids));

  request.mutable_output()->set_include_special_tokens(true);
  const std::vector<int32_t> before_eos(output.ids.begin(), output.ids.end() - 1);
  EXPECT_EQ(Generate(request).outputs.at(0).text, Decode(before_eos, true));
  request.mutable_stop()->set_include_stop_string(true);
  EXPECT_EQ(Generate(request).outputs.at(0).text, Decode(output.ids, true));
}

// What it must be has no end token in it, and begins with its first byte.
TEST_F(GenerationTest, EosIsNoPartOfAConstrainedText) {
  Serve();
  v1::GenerateRequest request = Request("hello", 90);
  request.mutable_stop()->set_ignore_eos(false);
  request.mutable_constraint()->set_regex("(.|\\n)*");
  for (uint64_t seed = 0; seed < 200; ++seed) {  // find one that meets EOS soon
    request.mutable_sampling()->set_seed(seed);
    if (ExpectedIds(request, seed).back() == kEos) break;
  }
  request.mutable_output()->set_include_special_tokens(true);
  request.mutable_stop()->set_include_stop_string(true);
  const Output output = Generate(request).outputs.at(0);
  ASSERT_EQ(output.ids.back(), kEos);
  const std::vector<int32_t> before_eos(output.ids.begin(), output.ids.end() - 1);
  EXPECT_EQ(output.text, Decode(before_eos, true));
}

TEST_F(GenerationTest, StopTokenIsNotInTheTextUnlessAsked) {
  Serve();
  v1::GenerateRequest request = Request("hello", 20);
  const std::vector<int32_t> ids = ExpectedIds(request, 5);
  size_t at = 6;
  while (tokenizer_->IsSpecial(ids[at]) ||
         std::find(ids.begin(), ids.begin() + at, ids[at]) != ids.begin() + at) {
    ++at;
  }
  request.mutable_stop()->add_stop_token_ids(ids[at]);
  const std::vector<int32_t> upto(ids.begin(), ids.begin() + at + 1);
  const std::vector<int32_t> before(ids.begin(), ids.begin() + at);
  Output output = Generate(request).outputs.at(0);
  EXPECT_EQ(output.ids, upto);
  EXPECT_EQ(output.finished->stop_token_id(), ids[at]);
  EXPECT_EQ(output.text, Decode(before));
  request.mutable_stop()->set_include_stop_string(true);
  EXPECT_EQ(Generate(request).outputs.at(0).text, Decode(upto));
}

TEST_F(GenerationTest, StopStringAcrossTokensEndsTheTextRight) {
  Serve();
  v1::GenerateRequest request = Request("hello", 60);
  const std::string whole = Decode(ExpectedIds(request, 5));
  const std::string stop = whole.substr(20, 3);  // one character per token
  const size_t at = whole.find(stop);
  request.mutable_stop()->add_stop_strings("never\x7fthere");
  request.mutable_stop()->add_stop_strings(stop);
  Output output = Generate(request).outputs.at(0);
  EXPECT_EQ(output.text, whole.substr(0, at));
  EXPECT_EQ(output.finished->reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(output.finished->stop_string(), stop);
  EXPECT_LT(output.ids.size(), 40u);

  request.mutable_stop()->set_include_stop_string(true);
  EXPECT_EQ(Generate(request).outputs.at(0).text, whole.substr(0, at + 3));
  EXPECT_TRUE(IsIdle());
}

TEST_F(GenerationTest, StopStringsAreNotLookedForBeforeMinTokens) {
  Serve();
  v1::GenerateRequest request = Request("hello", 60);
  request.mutable_stop()->set_min_tokens(30);
  const std::string whole = Decode(ExpectedIds(request, 5));
  request.mutable_stop()->add_stop_strings(whole.substr(3, 1));
  const Output output = Generate(request).outputs.at(0);
  EXPECT_GE(output.ids.size(), 30u);
  EXPECT_EQ(output.text, whole.substr(0, output.text.size()));
}

TEST_F(GenerationTest, AStopStringMayBeginBeforeMinTokens) {
  Serve();
  v1::GenerateRequest request = Request("hello", 60);
  const std::string whole = Decode(ExpectedIds(request, 5));  // one character per token
  const std::string stop = whole.substr(18, 6);
  const size_t at = whole.find(stop);
  request.mutable_stop()->add_stop_strings(stop);
  const auto last = static_cast<int32_t>(at + stop.size());  // the token that ends it
  request.mutable_stop()->set_min_tokens(last - 1);
  EXPECT_EQ(Generate(request).outputs.at(0).text, whole.substr(0, at));
  request.mutable_stop()->set_min_tokens(last);
  EXPECT_GT(Generate(request).outputs.at(0).text.size(), at + stop.size());
}

TEST_F(GenerationTest, StopStringOfOneOutputLeavesTheOthersAlone) {
  Serve();
  v1::GenerateRequest request = Request("hello", 30);
  request.mutable_sampling()->set_num_outputs(2);
  const std::string first = Decode(ExpectedIds(request, 5, 0));
  const std::string second = Decode(ExpectedIds(request, 5, 1));
  size_t at = 2;
  while (second.find(first.substr(at, 3)) != std::string::npos) ++at;
  request.mutable_stop()->add_stop_strings(first.substr(at, 3));
  const Generated generated = Generate(request);
  ASSERT_TRUE(generated.status.ok());
  EXPECT_EQ(generated.outputs.at(0).finished->reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(generated.outputs.at(1).finished->reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(generated.outputs.at(1).text, second);
}

TEST_F(GenerationTest, LogprobsComeForTokensAndPrompt) {
  Serve();
  v1::GenerateRequest request = Request("hello there", 8);
  request.mutable_output()->set_logprobs(2);
  request.mutable_output()->set_prompt_logprobs(1);
  const Generated generated = Generate(request);
  ASSERT_TRUE(generated.status.ok()) << generated.status.error_message();
  const std::vector<int32_t> prompt = *tokenizer_->Encode("hello there", {});
  const std::vector<LogprobInfo> expected = model_.PromptLogprobs(prompt, 1);
  ASSERT_EQ(generated.prompt_logprobs.size(), prompt.size() - 1);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(generated.prompt_logprobs[i].token().token_id(), prompt[i + 1]);
    EXPECT_EQ(generated.prompt_logprobs[i].token().logprob(), expected[i].logprob);
    EXPECT_EQ(generated.prompt_logprobs[i].top_size(), 1);
  }
  const Output& output = generated.outputs.at(0);
  ASSERT_EQ(output.logprobs.size(), output.ids.size());
  for (size_t i = 0; i < output.ids.size(); ++i) {
    EXPECT_EQ(output.logprobs[i].token().token_id(), output.ids[i]);
    EXPECT_EQ(output.logprobs[i].token().text(), tokenizer_->TokenBytes(output.ids[i]));
    EXPECT_EQ(output.logprobs[i].top_size(), 2);
  }
}

TEST_F(GenerationTest, WrongRequestsAreRefusedAndTheServerGoesOn) {
  Serve();
  v1::GenerateRequest request = Request("hello", 5);
  request.mutable_sampling()->set_temperature(-1);
  Generated generated = Generate(request);
  EXPECT_EQ(generated.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(generated.status.error_message(), HasSubstr("temperature"));
  EXPECT_FALSE(generated.accepted);

  generated = Generate(Request(std::string(400, 'z'), 5));
  EXPECT_EQ(generated.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(generated.status.error_message(),
              HasSubstr("maximum context length is 100 tokens (max_model_len)"));

  generated = Generate(Request(std::string(1 << 20, 'z'), 5));  // refused before tokenizing
  EXPECT_EQ(generated.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(generated.status.error_message(), HasSubstr("text has 1048576 bytes"));

  request = Request("", 5);
  request.mutable_token_ids()->add_ids(kVocabSize);
  generated = Generate(request);
  EXPECT_THAT(generated.status.error_message(), HasSubstr("token_ids[0] 400"));
  request.mutable_token_ids()->clear_ids();
  generated = Generate(request);
  EXPECT_THAT(generated.status.error_message(), HasSubstr("prompt is empty"));

  EXPECT_EQ(Status().requests_rejected(), 5u);
  EXPECT_EQ(Status().rejections().invalid(), 5u);
  EXPECT_TRUE(Generate(Request("hello", 5)).status.ok());
}

TEST_F(GenerationTest, PredictionsChangeNothingButTheNumberOfSteps) {
  ControllerOptions options = DefaultOptions();
  options.speculative_tokens = 4;
  Serve(std::move(options));
  v1::GenerateRequest request = Request("hello", 30);
  request.mutable_stop()->set_ignore_eos(true);
  const Generated without = Generate(request);
  const uint64_t num_steps = Status().num_steps();
  request.set_prediction(without.outputs.at(0).text);
  const Generated with = Generate(request);
  EXPECT_EQ(with.outputs.at(0).ids, without.outputs.at(0).ids);
  EXPECT_EQ(with.outputs.at(0).text, without.outputs.at(0).text);
  const v1::GetStatusResponse status = Status();
  EXPECT_GT(status.draft_tokens_accepted(), 10u);
  EXPECT_EQ(with.usage->num_guessed_tokens() + without.usage->num_guessed_tokens(),
            static_cast<int>(status.draft_tokens_accepted()));
  EXPECT_EQ(with.usage->num_wrong_guesses() + without.usage->num_wrong_guesses(),
            static_cast<int>(status.draft_tokens() - status.draft_tokens_accepted()));
  EXPECT_GE(status.draft_tokens(), status.draft_tokens_accepted());
  EXPECT_LT(status.num_steps(), 2 * num_steps);

  request.set_prediction(std::string(1 << 20, 'z'));  // refused before tokenizing
  const Generated refused = Generate(request);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("prediction has 1048576 bytes"));
}

TEST_F(GenerationTest, AServerThatDoesNotGuessLeavesPredictionsUnread) {
  Serve();
  v1::GenerateRequest request = Request("hello", 5);
  request.set_prediction(std::string(1 << 20, 'z'));
  EXPECT_TRUE(Generate(request).status.ok());
  EXPECT_EQ(Status().draft_tokens(), 0u);
}

TEST_F(GenerationTest, GuessesNeedRoomForOtherSequences) {
  ControllerOptions options = DefaultOptions();
  options.speculative_tokens = options.max_num_seqs;
  EXPECT_THAT(std::string(Controller::Start(std::move(options)).status().message()),
              HasSubstr("speculative_tokens 8 is outside [0, 7]"));
}

TEST_F(GenerationTest, BytesThatDoNotParseAreInvalidArguments) {
  Serve();
  grpc::Status status =
      CallRaw("/lockstep.v1.Generation/Generate", std::string("\x12\x03") + "ab\xff");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("text: invalid UTF-8 at byte 2"));
  for (const char* method : {"Generate", "Abort", "Tokenize", "Detokenize"}) {
    status = CallRaw(absl::StrCat("/lockstep.v1.Generation/", method), "\x0a\x7f-");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
  }
  EXPECT_TRUE(Generate(Request("hello", 5)).status.ok());
}

TEST_F(GenerationTest, RunningRequestIdsAreUnique) {
  Serve();
  v1::GenerateRequest request = Request("hello", 5);
  request.set_request_id("same");
  const auto stream = GenerateHeld(request);
  EXPECT_EQ(Generate(request).status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  replica_->Release();
  EXPECT_TRUE(ReadAll(*stream->reader).status.ok());
  EXPECT_TRUE(Generate(request).status.ok());  // free again
}

TEST_F(GenerationTest, AFullQueueRefusesAtOnce) {
  ControllerOptions options = DefaultOptions();
  options.max_num_seqs = 1;
  options.max_queued_requests = 2;
  Serve(std::move(options));
  std::vector<std::unique_ptr<OpenStream>> streams;
  for (int i = 0; i < 3; ++i) {  // one runs, two wait
    streams.push_back(GenerateHeld(Request("hello", 5)));
  }
  const Generated refused = Generate(Request("hello", 5));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Status().rejections().overload(), 1u);
  EXPECT_EQ(Status().requests_rejected(), 1u);
  replica_->Release();
  for (const auto& each : streams) EXPECT_TRUE(ReadAll(*each->reader).status.ok());
}

TEST_F(GenerationTest, ManyClientsGetWhatEachGetsAlone) {
  Serve(2, 2);
  constexpr int kClients = 64;
  std::vector<std::thread> clients;
  std::atomic<int> num_right{0};
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      v1::GenerateRequest request = Request(absl::StrCat("client ", i), 10 + i % 30);
      request.mutable_sampling()->set_seed(i);
      const Generated generated = Generate(request);
      EXPECT_TRUE(generated.status.ok()) << generated.status.error_message();
      if (generated.status.ok() && generated.outputs.at(0).ids == ExpectedIds(request, i)) {
        ++num_right;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(num_right.load(), kClients);
  EXPECT_TRUE(IsIdle());
  EXPECT_EQ(Status().requests_finished(), static_cast<uint64_t>(kClients));
}

TEST_F(GenerationTest, TextsInPiecesHaveNoBosAndNoTextBesides) {
  Serve();
  v1::TokenizeRequest request;
  v1::TextPiece& piece = *request.add_pieces();
  piece.set_text("hello");
  v1::TokenizeResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(stub().Tokenize(&context, request, &response).ok());
  const auto expected = *tokenizer_->Encode("hello", {.add_special_tokens = false});
  EXPECT_EQ(std::vector<int32_t>(response.token_ids().begin(), response.token_ids().end()),
            expected);
  request.set_text("more");
  grpc::ClientContext second;
  const grpc::Status both = stub().Tokenize(&second, request, &response);
  EXPECT_EQ(both.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(both.error_message(), HasSubstr("must be empty where pieces are given"));
}

TEST_F(GenerationTest, TheChatTemplateIsTheModelsUnlessAnotherIsGiven) {
  const TempDirectory directory;
  ControllerOptions options = DefaultOptions();
  options.chat_template = directory.Write("template", "{{ messages }}");
  StartController(options);
  v1::GetChatTemplateResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(stub().GetChatTemplate(&context, {}, &response).ok());
  EXPECT_EQ(response.source(), "{{ messages }}");
  EXPECT_TRUE(response.thinks_in_text());
}

// Does an output show where a thought ends?
TEST_F(GenerationTest, ThoughtsAreSeenUnlessTheirEndIsASpecialToken) {
  for (const bool is_special : {false, true}) {
    const TempDirectory directory;
    ControllerOptions options = DefaultOptions();
    std::filesystem::copy(options.model_dir, directory.path() / "model");
    options.model_dir = directory.path() / "model";
    nlohmann::json tokenizer =
        nlohmann::json::parse(ReadFile(options.model_dir / "tokenizer.json"));
    tokenizer["added_tokens"].push_back(
        {{"id", kVocabSize}, {"content", "</think>"}, {"special", is_special}});
    std::ofstream(options.model_dir / "tokenizer.json") << tokenizer;
    options.chat_template = directory.Write("template", "</think>");
    StartController(options);
    v1::GetChatTemplateResponse response;
    grpc::ClientContext context;
    ASSERT_TRUE(stub().GetChatTemplate(&context, {}, &response).ok());
    EXPECT_EQ(response.thinks_in_text(), !is_special);
  }
}

TEST_F(GenerationTest, TokenizeAndDetokenizeAreInverse) {
  Serve();
  const std::string text = "hello w\xc3\xb6rld " + std::string(6000, 'x');
  grpc::ClientContext context;
  v1::TokenizeRequest request;
  request.set_text(text);
  request.set_add_special_tokens(false);
  v1::TokenizeResponse response;
  ASSERT_TRUE(stub().Tokenize(&context, request, &response).ok());
  grpc::ClientContext back_context;
  v1::DetokenizeRequest back;
  *back.mutable_token_ids() = response.token_ids();
  v1::DetokenizeResponse back_response;
  ASSERT_TRUE(stub().Detokenize(&back_context, back, &back_response).ok());
  EXPECT_EQ(back_response.text(), text);

  grpc::ClientContext wrong_context;
  back.add_token_ids(100'000);
  EXPECT_EQ(stub().Detokenize(&wrong_context, back, &back_response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(GenerationTest, ServerInfoDescribesModelAndCapacity) {
  Serve(2, 1);
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(stub().GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.vocab_size(), kVocabSize);
  EXPECT_EQ(info.tensor_parallel(), 2);
  EXPECT_EQ(info.num_kv_blocks(), kNumBlocks);
  EXPECT_EQ(info.kv_capacity_tokens(), kNumBlocks * kBlockSize);
  EXPECT_EQ(info.max_model_len(), kMaxModelLen);
  EXPECT_EQ(info.model_name(), "model");
  EXPECT_EQ(info.bos_token_id(), kBos);
}

}  // namespace
}  // namespace lockstep::testing
