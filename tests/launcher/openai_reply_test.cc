#include "launcher/gateway/openai_reply.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/gateway/openai_error.h"
#include "launcher/gateway/openai_logprobs.h"
#include "runtime/controller/request_validation.h"

namespace lockstep {
namespace {

using Json = OpenAiReply::Json;

v1::Logprobs LogprobOf(const std::string& text, float logprob, const std::string& other = "") {
  v1::Logprobs logprobs;
  logprobs.mutable_token()->set_text(text);
  logprobs.mutable_token()->set_logprob(logprob);
  if (!other.empty()) {
    v1::TokenLogprob& top = *logprobs.add_top();
    top.set_text(other);
    top.set_logprob(-0.5f);
  }
  return logprobs;
}

// What a server sends of a prompt of three tokens, for each output "a" and "\xC3" + "\xA9".
class OpenAiReplyTest : public ::testing::Test {
 protected:
  void Send(size_t prompt, v1::GenerateEvent event) {
    reply_->Add(prompt, event);
    whole_->Add(prompt, event);
    for (Json& chunk : reply_->Chunks(prompt, event)) chunks_.push_back(std::move(chunk));
  }

  void SendAll(size_t prompt) {
    v1::GenerateEvent event;
    event.mutable_accepted()->set_request_id("r" + std::to_string(prompt));
    Send(prompt, event);
    if (request_.echo && request_.wants_logprobs()) {
      *event.mutable_prompt_logprobs()->add_logprobs() = LogprobOf("y", -3.0f);
      Send(prompt, event);
    }
    for (int output = 0; output < request_.num_outputs(); ++output) SendOutput(prompt, output);
  }

  void SendOutput(size_t prompt, int output) {
    v1::GenerateEvent event;
    v1::TokenDelta& delta = *event.mutable_delta();
    delta.set_output_index(static_cast<uint32_t>(output));
    delta.add_token_ids(1);
    delta.set_text("a");
    if (request_.wants_logprobs()) *delta.add_logprobs() = LogprobOf("a", -1.0f, "b");
    Send(prompt, event);
    delta.set_text("");  // half a character
    if (request_.wants_logprobs()) *delta.mutable_logprobs(0) = LogprobOf("\xC3", -2.0f);
    Send(prompt, event);
    delta.set_text("\xC3\xA9");
    if (request_.wants_logprobs()) *delta.mutable_logprobs(0) = LogprobOf("\xA9", -2.0f);
    Send(prompt, event);
    event.mutable_finished()->set_output_index(static_cast<uint32_t>(output));
    event.mutable_finished()->set_reason(v1::FINISH_REASON_STOP);
    event.mutable_finished()->set_stop_string("END");
    if (output + 1 == request_.num_outputs()) {
      event.mutable_finished()->mutable_usage()->set_num_prompt_tokens(2);
      event.mutable_finished()->mutable_usage()->set_num_cached_prompt_tokens(1);
      event.mutable_finished()->mutable_usage()->set_num_guessed_tokens(3);
      event.mutable_finished()->mutable_usage()->set_num_wrong_guesses(4);
      event.mutable_finished()->mutable_usage()->set_num_output_tokens(3 * (output + 1));
    }
    Send(prompt, event);
  }

  void Make(size_t num_prompts, const AssistantForm& form = {}) {
    std::vector<EchoedPrompt> echoed;
    if (request_.echo) echoed.assign(num_prompts, {"xy", "x"});
    for (auto* reply : {&reply_, &whole_}) {
      *reply = std::make_unique<OpenAiReply>(request_, num_prompts, "m", absl::FromUnixSeconds(5),
                                             echoed, form);
    }
  }

  OpenAiRequest request_;
  std::unique_ptr<OpenAiReply> reply_;  // a stream
  std::unique_ptr<OpenAiReply> whole_;  // the same answer at once
  std::vector<Json> chunks_;
};

TEST_F(OpenAiReplyTest, ACompletionHasItsOutputsInOrderAndTheirUsage) {
  request_.options.mutable_sampling()->set_num_outputs(2);
  Make(2);
  SendAll(1);
  SendAll(0);
  const Json whole = Json::parse(whole_->WholeText());
  EXPECT_EQ(whole["id"], "cmpl-r0");
  EXPECT_EQ(whole["object"], "text_completion");
  EXPECT_EQ(whole["created"], 5);
  EXPECT_EQ(whole["model"], "m");
  ASSERT_EQ(whole["choices"].size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(whole["choices"][i]["index"], i);
    EXPECT_EQ(whole["choices"][i]["text"], "a\xC3\xA9");
    EXPECT_EQ(whole["choices"][i]["finish_reason"], "stop");
    EXPECT_EQ(whole["choices"][i]["stop_reason"], "END");
    EXPECT_TRUE(whole["choices"][i]["logprobs"].is_null());
  }
  EXPECT_EQ(whole["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(whole["usage"]["completion_tokens"], 12);
  EXPECT_EQ(whole["usage"]["total_tokens"], 16);
  EXPECT_EQ(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
  const auto& details = whole["usage"]["completion_tokens_details"];
  EXPECT_EQ(details["accepted_prediction_tokens"], 6);
  EXPECT_EQ(details["rejected_prediction_tokens"], 8);
}

TEST_F(OpenAiReplyTest, AStreamTellsEveryByteOnce) {
  request_.include_usage = true;
  Make(1);
  SendAll(0);
  ASSERT_EQ(chunks_.size(), 3u);  // half a character is none
  EXPECT_EQ(chunks_[0]["choices"][0]["text"], "a");
  EXPECT_TRUE(chunks_[0]["choices"][0]["finish_reason"].is_null());
  EXPECT_TRUE(chunks_[0]["usage"].is_null());
  EXPECT_EQ(chunks_[1]["choices"][0]["text"], "\xC3\xA9");
  EXPECT_EQ(chunks_[2]["choices"][0]["text"], "");
  EXPECT_EQ(chunks_[2]["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(reply_->UsageChunk()["choices"].empty());
  EXPECT_EQ(reply_->UsageChunk()["usage"]["completion_tokens"], 3);
}

TEST_F(OpenAiReplyTest, UsageSoFarGoesWithEveryEventThatShallHaveIt) {
  request_.include_usage = request_.continuous_usage = true;
  Make(1);
  SendAll(0);
  ASSERT_EQ(chunks_.size(), 3u);
  EXPECT_EQ(chunks_[0]["usage"]["completion_tokens"], 1);
  EXPECT_EQ(chunks_[2]["usage"]["completion_tokens"], 3);
  EXPECT_EQ(chunks_[2]["usage"]["total_tokens"], 3);
}

TEST_F(OpenAiReplyTest, AnEchoAloneTellsNoToken) {
  request_.echo = request_.echoes_alone = true;
  request_.options.mutable_output()->set_logprobs(0);
  Make(1);
  SendAll(0);
  const Json choice = Json::parse(whole_->WholeText())["choices"][0];
  EXPECT_EQ(choice["text"], "xy");
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_TRUE(choice["stop_reason"].is_null());
  EXPECT_EQ(choice["logprobs"]["tokens"], Json({"x", "y"}));
  EXPECT_EQ(Json::parse(whole_->WholeText())["usage"]["completion_tokens"], 0);
  std::string text;
  for (const Json& chunk : chunks_) text += chunk["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(text, "xy");
  EXPECT_EQ(chunks_[1]["choices"][0]["logprobs"]["tokens"], Json({"x", "y"}));
}

TEST_F(OpenAiReplyTest, AChatBeginsWithItsRole) {
  request_.is_chat = true;
  Make(1);
  SendAll(0);
  ASSERT_EQ(chunks_.size(), 4u);
  EXPECT_EQ(chunks_[0]["id"], "chatcmpl-r0");
  EXPECT_EQ(chunks_[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(chunks_[0]["choices"][0]["delta"], Json({{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(chunks_[1]["choices"][0]["delta"], Json({{"content", "a"}}));
  EXPECT_EQ(chunks_[3]["choices"][0]["delta"], Json::object());
  EXPECT_EQ(chunks_[3]["choices"][0]["finish_reason"], "stop");
  const Json whole = Json::parse(whole_->WholeText());
  EXPECT_EQ(whole["object"], "chat.completion");
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "a\xC3\xA9");
}

// Clients take what opens a stream for its first token.
TEST_F(OpenAiReplyTest, AnOutputOpensWithItsFirstTokenOrItsEnd) {
  request_.is_chat = true;
  request_.options.mutable_sampling()->set_num_outputs(2);
  Make(1);
  v1::GenerateEvent accepted;
  accepted.mutable_accepted()->set_request_id("r0");
  Send(0, accepted);
  EXPECT_TRUE(chunks_.empty());
  v1::GenerateEvent end;
  end.mutable_finished()->set_output_index(1);
  end.mutable_finished()->set_reason(v1::FINISH_REASON_ABORTED);
  Send(0, end);
  ASSERT_EQ(chunks_.size(), 2u);
  EXPECT_EQ(chunks_[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(chunks_[0]["choices"][0]["index"], 1);
  EXPECT_EQ(chunks_[1]["choices"][0]["delta"], Json::object());
}

TEST_F(OpenAiReplyTest, LogprobsOfACompletionAreFourListsOfOneLength) {
  request_.echo = true;
  request_.options.mutable_output()->set_logprobs(1);
  Make(1);
  SendAll(0);
  const Json choice = Json::parse(whole_->WholeText())["choices"][0];
  EXPECT_EQ(choice["text"], "xya\xC3\xA9");
  const Json& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["tokens"], Json({"x", "y", "a", "bytes:\\xc3", "bytes:\\xa9"}));
  EXPECT_EQ(logprobs["token_logprobs"], Json({nullptr, -3.0f, -1.0f, -2.0f, -2.0f}));
  EXPECT_EQ(logprobs["text_offset"], Json({0, 1, 2, 3, 4}));
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  EXPECT_EQ(logprobs["top_logprobs"][2], Json({{"b", -0.5f}, {"a", -1.0f}}));
}

// "a" may be a token, and byte 0x61 another.
TEST(CompletionLogprobsTest, OfTokensWithOneTextTheLikeliestIsTold) {
  v1::Logprobs token = LogprobOf("b", -1.5f);
  for (const float logprob : {-0.25f, -3.0f}) {
    v1::TokenLogprob& top = *token.add_top();
    top.set_text("a");
    top.set_logprob(logprob);
  }
  CompletionLogprobs lists(0);
  lists.Add(token);
  lists.Add(LogprobOf("a", -4.0f, "a"));  // -0.5
  const Json json = lists.Take();
  EXPECT_EQ(json["top_logprobs"][0], Json({{"a", -0.25f}, {"b", -1.5f}}));
  EXPECT_EQ(json["top_logprobs"][1], Json({{"a", -0.5f}}));
  EXPECT_EQ(json["token_logprobs"], Json({-1.5f, -4.0f}));
}

TEST_F(OpenAiReplyTest, StreamedLogprobsAreThoseOfTheWhole) {
  request_.echo = true;
  request_.options.mutable_output()->set_logprobs(1);
  Make(1);
  SendAll(0);
  const Json whole = Json::parse(whole_->WholeText())["choices"][0]["logprobs"];
  std::string text;
  Json parts = {{"tokens", Json::array()}, {"text_offset", Json::array()}};
  for (const Json& chunk : chunks_) {
    const Json& choice = chunk["choices"][0];
    text += choice["text"].get<std::string>();
    if (choice["logprobs"].is_null()) continue;
    for (const char* list : {"tokens", "text_offset"}) {
      for (const Json& entry : choice["logprobs"][list]) parts[list].push_back(entry);
    }
  }
  EXPECT_EQ(text, "xya\xC3\xA9");
  EXPECT_EQ(parts["tokens"], whole["tokens"]);
  EXPECT_EQ(parts["text_offset"], whole["text_offset"]);
}

TEST_F(OpenAiReplyTest, LogprobsOfAChatHaveBytes) {
  request_.is_chat = true;
  request_.options.mutable_output()->set_logprobs(1);
  Make(1);
  SendAll(0);
  const Json content = Json::parse(whole_->WholeText())["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 3u);
  EXPECT_EQ(content[0]["token"], "a");
  EXPECT_EQ(content[0]["top_logprobs"][0]["token"], "b");
  EXPECT_EQ(content[1]["bytes"], Json({0xC3}));
  EXPECT_EQ(content[1]["token"], "\xEF\xBF\xBD");
  EXPECT_EQ(chunks_[2]["choices"][0]["logprobs"]["content"].size(), 1u);  // a chunk for the half
}

// A stream that goes on after its server came back tells who was accepted and all ends once more.
TEST_F(OpenAiReplyTest, WhatComesTwiceIsToldOnce) {
  request_.is_chat = true;
  Make(2);
  SendAll(0);
  EXPECT_FALSE(reply_->all_accepted());
  const size_t num_chunks = chunks_.size();
  v1::GenerateEvent event;
  event.mutable_accepted()->set_request_id("r0");
  Send(0, event);
  event.mutable_finished()->set_reason(v1::FINISH_REASON_STOP);
  Send(0, event);
  EXPECT_EQ(chunks_.size(), num_chunks);
  SendAll(1);
  EXPECT_TRUE(reply_->all_accepted());
}

// An index beyond what was asked for must not reach memory.
TEST_F(OpenAiReplyTest, AWildServerIsBorne) {
  Make(1);
  v1::GenerateEvent event;
  event.mutable_delta()->set_output_index(~0u);
  event.mutable_delta()->set_text("wild");
  Send(0, event);
  event.mutable_finished()->set_output_index(7);
  Send(0, event);
  EXPECT_TRUE(chunks_.empty());
  EXPECT_EQ(Json::parse(whole_->WholeText())["choices"].size(), 1u);
}

TEST(OpenAiErrorTest, SaysInHttpWhatTheStatusSays) {
  const HttpReply refused = OpenAiError(absl::ResourceExhaustedError("the queue is full"));
  EXPECT_EQ(refused.status, 429);
  EXPECT_GT(refused.retry_after_seconds, 0);
  const Json body = Json::parse(refused.body);
  EXPECT_EQ(body["error"]["message"], "the queue is full");
  EXPECT_EQ(body["error"]["type"], "rate_limit_error");
  EXPECT_EQ(OpenAiError(absl::InvalidArgumentError("")).status, 400);
  EXPECT_EQ(OpenAiError(absl::FailedPreconditionError("")).status, 400);
  EXPECT_EQ(OpenAiError(absl::UnauthenticatedError("")).status, 401);
  EXPECT_EQ(OpenAiError(absl::UnavailableError("")).status, 503);
  EXPECT_EQ(OpenAiError(absl::InternalError("")).status, 500);
  EXPECT_NO_THROW(Json::parse(OpenAiError(400, "\xFF").body));
}

class ChatReplyTest : public OpenAiReplyTest {
 protected:
  ChatReplyTest() { request_.is_chat = true; }

  // By pieces of three bytes.
  void Say(const std::string& text, v1::FinishReason reason = v1::FINISH_REASON_STOP) {
    v1::GenerateEvent event;
    event.mutable_accepted()->set_request_id("r");
    Send(0, event);
    for (size_t i = 0; i < text.size(); i += 3) {
      event.mutable_delta()->clear_token_ids();
      event.mutable_delta()->add_token_ids(1);
      event.mutable_delta()->set_text(text.substr(i, 3));
      Send(0, event);
    }
    event.mutable_finished()->set_reason(reason);
    Send(0, event);
  }
  // Of all deltas.
  std::string Content(const char* field = "content") const {
    std::string content;
    for (const Json& chunk : chunks_) {
      EXPECT_LE(chunk["choices"][0]["delta"].size(), chunk == chunks_[0] ? 2u : 1u);
      content += chunk["choices"][0]["delta"].value(field, "");
    }
    return content;
  }
  const Json& Last(size_t from_end) const {
    return chunks_[chunks_.size() - 1 - from_end]["choices"][0];
  }
};

Json ErrorOf(const absl::Status& status) { return OpenAiErrorJson(status)["error"]; }

TEST(OpenAiErrorTest, NamesFieldsAsOpenAiDoes) {
  const auto said = [](const char* message) {
    return ErrorOf(absl::InvalidArgumentError(message));
  };
  EXPECT_EQ(said("sampling.num_outputs 0 is outside [1, 64]")["param"], "n");
  EXPECT_EQ(said("sampling.num_outputs 0 is outside [1, 64]")["message"], "n 0 is outside [1, 64]");
  EXPECT_EQ(said("stop.max_tokens 0 is outside [1, 9]")["param"], "max_tokens");
  EXPECT_EQ(said("stop.stop_strings[2] has 0 bytes")["param"], "stop");
  EXPECT_EQ(said("stop.stop_strings[2] has 0 bytes")["message"], "stop[2] has 0 bytes");
  EXPECT_EQ(said("top_p is 3, must be above 0")["param"], "top_p");
  EXPECT_TRUE(said("nothing that we know")["param"].is_null());
  EXPECT_TRUE(ErrorOf(absl::UnavailableError("stop.max_tokens"))["param"].is_null());
}

TEST(OpenAiErrorTest, PromptsThatAreTooLongHaveTheCodeThatClientsLookFor) {
  const Json error = ErrorOf(absl::InvalidArgumentError(
      absl::StrCat("prompt has 9 tokens, but the ", kContextLengthWords, " is 8 tokens")));
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_TRUE(ErrorOf(absl::InvalidArgumentError("prompt is empty"))["code"].is_null());
}

class ToolReplyTest : public ChatReplyTest {
 protected:
  ToolReplyTest() {
    request_.tool_names = {"add"};
    Make(1);
  }
};

TEST_F(ToolReplyTest, ACallIsToldAtTheEndAndNoTextOfIt) {
  Say(R"({"name": "add", "parameters": {"a": 1}})");
  EXPECT_EQ(Content(), "");
  ASSERT_EQ(chunks_.size(), 3u);
  Json call = Last(1)["delta"]["tool_calls"][0];
  EXPECT_EQ(call["id"], ToolCallId("r", 0, 0, /*is_short=*/false));
  call.erase("id");
  EXPECT_EQ(call, Json::parse(R"({"index": 0, "type": "function",
                                  "function": {"name": "add", "arguments": "{\"a\":1}"}})"));
  EXPECT_EQ(Last(0)["finish_reason"], "tool_calls");
  const Json choice = Json::parse(whole_->WholeText())["choices"][0];
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "add");
  EXPECT_FALSE(choice["message"]["tool_calls"][0].contains("index"));
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
}

// Whatever it looks like: who asked for it reads it there.
TEST_F(ToolReplyTest, ATextThatMustBeSomethingElseIsNoCall) {
  const std::string text = R"({"name": "add", "parameters": {"a": "none"}})";
  request_.options.mutable_constraint()->set_regex(".*");
  Make(1);
  Say(text);
  EXPECT_EQ(Content(), text);
  EXPECT_EQ(Last(0)["finish_reason"], "stop");
  const Json message = Json::parse(whole_->WholeText())["choices"][0]["message"];
  EXPECT_EQ(message["content"], text);
  EXPECT_FALSE(message.contains("tool_calls"));
  request_.options.mutable_constraint()->mutable_tool_calls();
  chunks_.clear();
  Make(1);
  Say(text);
  EXPECT_EQ(Last(0)["finish_reason"], "tool_calls");
}

TEST_F(ToolReplyTest, TextIsToldAsItComes) {
  Say("Three plus four is seven.");
  EXPECT_EQ(Content(), "Three plus four is seven.");
  EXPECT_GT(chunks_.size(), 8u);
  EXPECT_EQ(Last(0)["finish_reason"], "stop");
  EXPECT_FALSE(Json::parse(whole_->WholeText())["choices"][0]["message"].contains("tool_calls"));
}

TEST_F(ToolReplyTest, WhatLookedLikeACallIsTextAfterAll) {
  Say(R"({"name": "rm"} <tool_call>)");
  EXPECT_EQ(Content(), R"({"name": "rm"} <tool_call>)");
  EXPECT_EQ(Last(0)["finish_reason"], "stop");
}

TEST_F(ToolReplyTest, TextBeforeACallIsContent) {
  Say("I add.<tool_call>{\"name\": \"add\"}</tool_call>");
  EXPECT_EQ(Content(), "I add.");
  EXPECT_EQ(Last(0)["finish_reason"], "tool_calls");
  EXPECT_EQ(Json::parse(whole_->WholeText())["choices"][0]["message"]["content"], "I add.");
}

TEST_F(ToolReplyTest, ACallThatWasCutOffEndsByItsLength) {
  Say(R"({"name": "add", "param)", v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(Content(), R"({"name": "add", "param)");
  EXPECT_EQ(Last(0)["finish_reason"], "length");
  const Json choice = Json::parse(whole_->WholeText())["choices"][0];
  EXPECT_EQ(choice["message"]["content"], R"({"name": "add", "param)");
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
}

class ThinkingReplyTest : public ChatReplyTest {
 protected:
  void Say(const std::string& text, v1::Thought thought) {
    chunks_.clear();
    Make(1, {.thought = thought});
    ChatReplyTest::Say(text);
  }
  Json Message() const { return Json::parse(whole_->WholeText())["choices"][0]["message"]; }
};

TEST_F(ThinkingReplyTest, ThoughtsAreAFieldOfTheirOwn) {
  Say("<think>\nSo.\n</think>\n\nYes.", v1::THOUGHT_ALLOWED);
  EXPECT_EQ(Content("reasoning_content"), "So.");
  EXPECT_EQ(Content(), "Yes.");
  EXPECT_EQ(Message()["reasoning_content"], "So.");
  EXPECT_EQ(Message()["content"], "Yes.");
  EXPECT_EQ(chunks_.back()["choices"][0]["finish_reason"], "stop");
}

TEST_F(ThinkingReplyTest, AnAnswerWithoutThoughtsHasNone) {
  Say("Yes.", v1::THOUGHT_ALLOWED);
  EXPECT_EQ(Content(), "Yes.");
  EXPECT_FALSE(Message().contains("reasoning_content"));
  Say("<think>So.</think>Yes.", v1::THOUGHT_NONE);
  EXPECT_EQ(Message()["content"], "<think>So.</think>Yes.");
}

TEST_F(ThinkingReplyTest, AThoughtThatNeverEndsHasNoAnswer) {
  Say("So it is, or", v1::THOUGHT_BEGUN);
  EXPECT_EQ(Content("reasoning_content"), "So it is, or");
  EXPECT_EQ(Content(), "");
  EXPECT_TRUE(Message()["content"].is_null());
  EXPECT_EQ(Message()["reasoning_content"], "So it is, or");
}

TEST_F(ThinkingReplyTest, ThoughtsMayBeLeftOutOrBePartOfTheText) {
  request_.reasoning = OpenAiRequest::Reasoning::kLeftOut;
  Say("So.</think>Yes.", v1::THOUGHT_BEGUN);
  EXPECT_EQ(Content("reasoning_content"), "");
  EXPECT_EQ(Content(), "Yes.");
  EXPECT_FALSE(Message().contains("reasoning_content"));
  Say("So it is, or", v1::THOUGHT_BEGUN);
  EXPECT_EQ(Message()["content"], "");
  request_.reasoning = OpenAiRequest::Reasoning::kInContent;
  Say("So.</think>Yes.", v1::THOUGHT_BEGUN);
  EXPECT_EQ(Content(), "So.</think>Yes.");
  EXPECT_EQ(Message()["content"], "So.</think>Yes.");
}

TEST_F(ThinkingReplyTest, EachTokenHasItsLogprobsOnce) {
  request_.options.mutable_output()->set_logprobs(0);
  Say("", v1::THOUGHT_BEGUN);
  v1::GenerateEvent event;
  for (const char* text : {"So", "</think>\n\nYes", "", "."}) {
    event.mutable_delta()->set_text(text);
    event.mutable_delta()->clear_logprobs();
    *event.mutable_delta()->add_logprobs() = LogprobOf(text, -1.0f);
    Send(0, event);
  }
  std::vector<std::string> tokens;
  for (const Json& chunk : chunks_) {
    const Json& logprobs = chunk["choices"][0]["logprobs"];
    if (logprobs.is_null()) continue;
    for (const Json& token : logprobs["content"]) tokens.push_back(token["token"]);
  }
  EXPECT_THAT(tokens, ::testing::ElementsAre("So", "</think>\n\nYes", "", "."));
}

}  // namespace
}  // namespace lockstep
