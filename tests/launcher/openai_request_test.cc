#include "launcher/gateway/openai_request.h"

#include "absl/strings/str_cat.h"

#include <map>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/gateway/conversation.h"
#include "launcher/gateway/request_fields.h"
#include "model/sampling/sampling_params.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

OpenAiRequest Completion(const std::string& body) {
  const auto request = ParseCompletionRequest(body);
  EXPECT_TRUE(request.ok()) << body << ": " << request.status();
  return request.value_or(OpenAiRequest());
}

OpenAiRequest Chat(const std::string& fields) {
  const auto request =
      ParseChatRequest(R"({"messages": [{"role": "user", "content": "Hi"}])" + fields + "}");
  EXPECT_TRUE(request.ok()) << fields << ": " << request.status();
  return request.value_or(OpenAiRequest());
}

TEST(OpenAiRequestTest, CompletionsMayGiveTheirPromptInFourWays) {
  EXPECT_EQ(Completion(R"({"prompt": "Once"})").prompts.at(0).text, "Once");
  EXPECT_EQ(Completion(R"({"prompt": ["a", "b"]})").prompts.at(1).text, "b");
  EXPECT_THAT(Completion(R"({"prompt": [1, 2]})").prompts.at(0).token_ids, ElementsAre(1, 2));
  const OpenAiRequest both = Completion(R"({"prompt": [[1, 2], "text", [3]]})");
  ASSERT_EQ(both.prompts.size(), 3u);
  EXPECT_THAT(both.prompts[2].token_ids, ElementsAre(3));
  EXPECT_EQ(both.prompts[1].text, "text");
}

TEST(OpenAiRequestTest, EveryOptionReachesTheServer) {
  const OpenAiRequest request = Completion(R"({
      "model": "m", "prompt": "p", "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 3,
      "min_p": 0.1, "repetition_penalty": 1.5, "presence_penalty": -1, "frequency_penalty": 2,
      "seed": 18446744073709551615, "n": 2, "logit_bias": {"5": -100, "6": 1.5}, "logprobs": 4,
      "stop": ["x", "y"], "stop_token_ids": [8], "min_tokens": 1, "ignore_eos": true,
      "include_stop_str_in_output": true, "stream": true, "stream_options": {"include_usage": true},
      "echo": true, "skip_special_tokens": false, "cache_salt": "s", "priority": -3,
      "parse_special_tokens": false, "add_special_tokens": false, "user": "u"})");
  EXPECT_EQ(request.model, "m");
  EXPECT_TRUE(request.stream && request.include_usage && request.echo);
  const v1::SamplingOptions& sampling = request.options.sampling();
  EXPECT_EQ(sampling.temperature(), 0.5f);
  EXPECT_EQ(sampling.top_p(), 0.9f);
  EXPECT_EQ(sampling.top_k(), 3);
  EXPECT_EQ(sampling.min_p(), 0.1f);
  EXPECT_EQ(sampling.repetition_penalty(), 1.5f);
  EXPECT_EQ(sampling.presence_penalty(), -1.0f);
  EXPECT_EQ(sampling.frequency_penalty(), 2.0f);
  EXPECT_EQ(sampling.seed(), ~uint64_t{0});
  EXPECT_EQ(sampling.num_outputs(), 2);
  EXPECT_EQ(sampling.logit_bias().at(5), -100.0f);
  EXPECT_EQ(sampling.logit_bias().at(6), 1.5f);
  const v1::StopOptions& stop = request.options.stop();
  EXPECT_EQ(stop.max_tokens(), 7);
  EXPECT_EQ(stop.min_tokens(), 1);
  EXPECT_THAT(stop.stop_strings(), ElementsAre("x", "y"));
  EXPECT_THAT(stop.stop_token_ids(), ElementsAre(8));
  EXPECT_TRUE(stop.ignore_eos() && stop.include_stop_string());
  EXPECT_EQ(request.options.output().logprobs(), 4);
  EXPECT_EQ(request.options.output().prompt_logprobs(), 4);
  EXPECT_TRUE(request.options.output().include_special_tokens());
  EXPECT_EQ(request.options.cache_salt(), "s");
  EXPECT_EQ(request.options.priority(), -3);
  EXPECT_FALSE(request.options.parse_special_tokens());
  EXPECT_FALSE(request.options.add_special_tokens());
}

TEST(OpenAiRequestTest, WhatIsNotGivenIsLeftToTheServer) {
  const OpenAiRequest chat = Chat(R"(, "temperature": null, "stop": null)");
  EXPECT_FALSE(chat.options.sampling().has_temperature());
  EXPECT_FALSE(chat.options.stop().has_max_tokens());
  EXPECT_FALSE(chat.wants_logprobs());
  EXPECT_EQ(chat.num_outputs(), 1);
  EXPECT_EQ(Completion(R"({"prompt": "p"})").options.stop().max_tokens(), 16);  // OpenAI's default
  EXPECT_EQ(Chat(R"(, "top_k": -1)").options.sampling().top_k(), 0);            // vLLM's "off"
}

TEST(OpenAiRequestTest, ChatsHaveMessagesAndTheirOwnNames) {
  const auto request = ParseChatRequest(R"({"messages": [
      {"role": "developer", "content": "S"},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": "c", "tool_calls": []}],
      "max_completion_tokens": 9, "logprobs": true, "top_logprobs": 2})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->chat, nlohmann::ordered_json::parse(R"({"add_generation_prompt": true,
      "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "a\nb"},
                   {"role": "assistant", "content": "c"}]})"));
  EXPECT_EQ(request->options.stop().max_tokens(), 9);
  EXPECT_EQ(request->options.output().logprobs(), 2);
  EXPECT_EQ(Chat(R"(, "logprobs": true)").options.output().logprobs(), 0);
  EXPECT_FALSE(Chat(R"(, "logprobs": false)").wants_logprobs());
}

// openai-python sends what its parse() has made of an answer.
TEST(OpenAiRequestTest, ParsedAnswersMayBeSentBack) {
  const auto request = ParseChatRequest(R"({"messages": [
      {"role": "user", "content": "a"},
      {"role": "assistant", "content": null, "refusal": null, "parsed": {"x": 1}, "tool_calls": [
          {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}",
           "parsed_arguments": {}}}]},
      {"role": "tool", "tool_call_id": "c", "content": "2"}]})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_FALSE(request->chat["messages"][1].contains("parsed"));
}

TEST(OpenAiRequestTest, TextsAndChatsMayBeTokenized) {
  const auto text = ParseTokenizeRequest(R"({"model": "m", "prompt": "a"})");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->model, "m");
  EXPECT_EQ(text->prompts.front().text, "a");
  EXPECT_TRUE(text->options.add_special_tokens());
  EXPECT_TRUE(text->options.parse_special_tokens());
  EXPECT_FALSE(ParseTokenizeRequest(R"({"prompt": "", "add_special_tokens": false})")
                   ->options.add_special_tokens());
  const auto chat = ParseTokenizeRequest(R"({"messages": [{"role": "user", "content": "a"}],
      "add_generation_prompt": false, "add_special_tokens": false, "return_token_strs": false})");
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_TRUE(chat->is_chat);
  EXPECT_EQ(chat->chat["add_generation_prompt"], false);
  for (const auto& [body, words] :
       {std::pair(R"({})", "prompt is missing, and so are messages"),
        {R"({"prompt": ["a"]})", "prompt must be"},
        {R"({"prompt": "a", "max_tokens": 1})", "unknown field \"max_tokens\""},
        {R"({"prompt": "a", "return_token_strs": true})", "return_token_strs must be false"},
        {R"({"messages": [{"role": "user", "content": "a"}], "add_special_tokens": true})",
         "add_special_tokens must be false"},
        {R"({"messages": []})", "messages must be"}}) {
    EXPECT_THAT(std::string(ParseTokenizeRequest(body).status().message()), HasSubstr(words))
        << body;
  }
}

TEST(OpenAiRequestTest, TokensMayBeDetokenized) {
  const auto request = ParseDetokenizeRequest(R"({"tokens": [1, 2]})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->prompts.front().token_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_TRUE(ParseDetokenizeRequest(R"({"tokens": []})").ok());
  for (const char* body : {R"({})", R"({"tokens": "1"})", R"({"tokens": [-1]})",
                           R"({"tokens": [1.5]})", R"({"tokens": [2147483648]})"}) {
    EXPECT_THAT(std::string(ParseDetokenizeRequest(body).status().message()),
                HasSubstr("tokens must be an array of token ids"))
        << body;
  }
}

TEST(OpenAiRequestTest, AnAssistantsMessageMayBeContinued) {
  const auto request = ParseChatRequest(R"({"continue_final_message": true, "messages": [
      {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(request->continues_message);
  EXPECT_EQ(request->chat["add_generation_prompt"], false);
  EXPECT_FALSE(Chat("").continues_message);
}

TEST(OpenAiRequestTest, PredictionsAreTextsOrParts) {
  EXPECT_EQ(Chat(R"(, "prediction": {"type": "content", "content": "ab"})").options.prediction(),
            "ab");
  EXPECT_EQ(Chat(R"(, "prediction": {"type": "content",
                      "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]})")
                .options.prediction(),
            "ab");
  EXPECT_EQ(Chat(R"(, "prediction": null)").options.prediction(), "");
}

struct Refused {
  const char* body;
  const char* error;
};

TEST(OpenAiRequestTest, WrongCompletionsAreRefusedByName) {
  for (const Refused& wrong : {
           Refused{"{", "not JSON"},
           {"[]", "the body must be an object"},
           {R"({"prompt": "a", "prompt": "b"})", "occurs twice"},
           {"{}", "prompt is missing"},
           {R"({"prompt": []})", "prompt must be"},
           {R"({"prompt": [1, -2]})", "prompt holds 1"},
           {R"({"prompt": [2147483648]})", "prompt holds 2147483648"},
           {R"({"prompt": {"a": 1}})", "prompt must be"},
           {R"({"prompt": "p", "top_kk": 1})", "unknown field \"top_kk\""},
           {R"({"prompt": "p", "max_tokens": 1.5})", "max_tokens must be an integer"},
           {R"({"prompt": "p", "max_tokens": 2147483648})", "to 2147483647, not 2147483648"},
           {R"({"prompt": "p", "max_tokens": 18446744073709551615})", "max_tokens must be"},
           {R"({"prompt": "p", "max_tokens": "7"})", "not \"7\""},
           {R"({"prompt": "p", "temperature": 1e39})", "temperature must be a number of 32 bits"},
           {R"({"prompt": "p", "seed": 0.5})", "seed must be an integer from -2^63"},
           {R"({"prompt": "p", "stream": 1})", "stream must be true or false"},
           {R"({"prompt": "p", "stream_options": {}})", "stream_options is for"},
           {R"({"prompt": "p", "stream": true, "stream_options": {"x": 1}})", "stream_options.x"},
           {R"({"prompt": "p", "stop": 5})", "stop must be"},
           {R"({"prompt": "p", "stop": ["a", 5]})", "stop must be"},
           {R"({"prompt": "p", "stop_token_ids": [4294967296]})", "stop_token_ids must be"},
           {R"({"prompt": "p", "logit_bias": {"x": 1}})", "logit_bias takes"},
           {R"({"prompt": "p", "logit_bias": {"1": "a"}})", "logit_bias takes"},
           {R"({"prompt": "p", "suffix": "s"})", "suffix cannot be given"},
           {R"({"prompt": "p", "n": 2, "best_of": 3})", "best_of must be n"},
           {"{\"prompt\": \"\xFF\"}", "not JSON"},
       }) {
    const auto request = ParseCompletionRequest(wrong.body);
    EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument) << wrong.body;
    EXPECT_THAT(std::string(request.status().message()), HasSubstr(wrong.error)) << wrong.body;
  }
}

constexpr char kTools[] = R"("tools": [{"type": "function", "function":
    {"name": "get_w", "parameters": {"type": "object", "properties": {"z": {}, "a": {}}}}}])";

TEST(OpenAiRequestTest, ToolsReachTheTemplateAsTheyWereWritten) {
  const auto request = ParseChatRequest(absl::StrCat("{", kTools, R"(, "messages": [
      {"role": "user", "content": "weather?"},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
          "function": {"name": "get_w", "arguments": "{\"z\": 1, \"a\": [2.50]}"}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "21"}]})"));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->tool_names, std::set<std::string>{"get_w"});
  const auto& messages = request->chat["messages"];
  EXPECT_EQ(messages[1]["content"], "");
  EXPECT_EQ(messages[1]["tool_calls"][0]["function"]["arguments"].dump(), R"({"z":1,"a":[2.5]})");
  EXPECT_EQ(messages[2]["tool_call_id"], "c1");
  EXPECT_EQ(request->chat["tools"][0]["function"]["parameters"]["properties"].dump(),
            R"({"z":{},"a":{}})");
}

TEST(OpenAiRequestTest, ValuesBeyondAMebibyteAreRefused) {
  std::string numbers = "[1";
  for (int i = 0; i < 600000; ++i) numbers += ",1";
  numbers += "]";
  for (const std::string& field :
       {absl::StrCat(R"("chat_template_kwargs": {"x": )", numbers, "}"),
        absl::StrCat(
            R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": )",
            numbers, "}}}]")}) {
    const auto request = ParseChatRequest(
        absl::StrCat(R"({"messages": [{"role": "user", "content": "a"}], )", field, "}"));
    EXPECT_THAT(std::string(request.status().message()), HasSubstr("at most 1048576"));
  }
  const auto arguments = ParseChatRequest(absl::StrCat(
      R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f",
          "arguments": "{\"x\": )",
      numbers, R"(}"}}]}]})"));
  EXPECT_THAT(std::string(arguments.status().message()), HasSubstr("at most 1048576"));
}

// In a second, not in the hours that looking through all names for each would take.
TEST(OpenAiRequestTest, ManyNamesElsewhereDoNotSlowToolsDown) {
  std::string metadata = R"({"0": "")";
  for (int i = 1; i < 400000; ++i) absl::StrAppend(&metadata, ",\"", i, "\":\"\"");
  const OpenAiRequest request = Chat(absl::StrCat(R"(, "metadata": )", metadata, "}, ", kTools));
  EXPECT_EQ(request.tool_names.size(), 1u);
}

TEST(OpenAiRequestTest, ToolsThatMayNotBeCalledAreNotShown) {
  const OpenAiRequest request = Chat(absl::StrCat(R"(, "tool_choice": "none", )", kTools));
  EXPECT_TRUE(request.tool_names.empty());
  EXPECT_FALSE(request.chat.contains("tools"));
}

TEST(OpenAiRequestTest, WhatATemplateKnowsBesidesCanBeGivenButNotInsteadOfMessages) {
  const OpenAiRequest request = Chat(
      R"(, "chat_template_kwargs": {"date_string": "1 May 2026", "messages": "x", "tools": 3})");
  EXPECT_EQ(request.chat["date_string"], "1 May 2026");
  EXPECT_TRUE(request.chat["messages"].is_array());
  EXPECT_FALSE(request.chat.contains("tools"));
}

TEST(OpenAiRequestTest, ThoughtsComeApartUnlessTheyAreWantedElsewhere) {
  using Reasoning = OpenAiRequest::Reasoning;
  EXPECT_EQ(Chat("").reasoning, Reasoning::kApart);
  EXPECT_EQ(Chat(R"(, "separate_reasoning": true, "include_reasoning": true)").reasoning,
            Reasoning::kApart);
  EXPECT_EQ(Chat(R"(, "separate_reasoning": false)").reasoning, Reasoning::kInContent);
  EXPECT_EQ(Chat(R"(, "include_reasoning": false)").reasoning, Reasoning::kLeftOut);
  const OpenAiRequest told = Chat(R"(, "reasoning_effort": "low",
      "chat_template_kwargs": {"enable_thinking": false, "reasoning_effort": "high"})");
  EXPECT_EQ(told.chat["reasoning_effort"], "low");
  EXPECT_EQ(told.chat["enable_thinking"], false);
}

TEST(OpenAiRequestTest, WhatOthersTakeForNearlyGreedyIsTaken) {
  EXPECT_EQ(Completion(R"({"prompt": "p", "temperature": 1e-10})").options.sampling().temperature(),
            SamplingParams::kMinTemperature);
  EXPECT_EQ(Completion(R"({"prompt": "p", "temperature": 0})").options.sampling().temperature(), 0);
  const OpenAiRequest likeliest = Completion(R"({"prompt": "p", "top_p": 0, "top_k": 40})");
  EXPECT_EQ(likeliest.options.sampling().top_k(), 1);
  EXPECT_FALSE(likeliest.options.sampling().has_top_p());
  EXPECT_EQ(Completion(R"({"prompt": "p", "seed": -1})").options.sampling().seed(), ~uint64_t{0});
}

TEST(OpenAiRequestTest, WhatChangesNothingIsPassedOver) {
  Completion(R"({"prompt": "p", "detokenize": true, "return_token_ids": false, "bad_words": [],
                 "allowed_token_ids": [], "prompt_cache_retention": "24h"})");
  const OpenAiRequest chat = Chat(R"(, "verbosity": "low", "documents": [], "top_logprobs": 0,
                                      "request_id": "mine")");
  EXPECT_EQ(chat.options.request_id(), "mine");
  const auto marked = ParseChatRequest(R"({"messages": [{"role": "user", "cache_control": {},
      "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}]})");
  EXPECT_TRUE(marked.ok()) << marked.status();
  for (const char* neutral :
       {R"(, "use_beam_search": false, "length_penalty": 1, "echo": false, "session_id": "s")",
        R"(, "spaces_between_special_tokens": false, "add_special_tokens": false)",
        R"(, "return_tokens_as_token_ids": false, "prompt_cache_options": {"mode": "implicit"})"}) {
    Chat(neutral);
  }
  EXPECT_FALSE(Chat(R"(, "structured_outputs": {})").options.has_constraint());
}

// What litellm, langchain and OpenAI's own clients keep with messages and send back.
TEST(OpenAiRequestTest, WhatClientsKeepWithMessagesMayComeBack) {
  const auto request = ParseChatRequest(R"({"messages": [
      {"role": "user", "content": ["a", {"type": "input_text", "text": "b"}]},
      {"role": "assistant", "content": "c", "provider_specific_fields": {"refusal": null},
       "id": "msg_1", "thinking_blocks": [], "reasoning_details": [], "refusal": ""},
      {"role": "assistant", "content": null, "refusal": "no"},
      {"role": "assistant", "content": "a", "refusal": "no"},
      {"role": "assistant", "content": [{"type": "refusal", "refusal": "never"},
                                        {"type": "output_text", "text": "d", "annotations": []}]},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
       "provider_specific_fields": {}, "extra_content": {},
       "function": {"name": "f", "arguments": "null"}}]}]})");
  ASSERT_TRUE(request.ok()) << request.status();
  const auto& messages = request->chat["messages"];
  EXPECT_EQ(messages[0]["content"], "a\nb");
  EXPECT_EQ(messages[1]["content"], "c");
  EXPECT_EQ(messages[2]["content"], "no");
  EXPECT_EQ(messages[3]["content"], "a\nno");
  EXPECT_EQ(messages[4]["content"], "never\nd");
  EXPECT_EQ(messages[5]["content"], "");
  EXPECT_TRUE(messages[5]["tool_calls"][0]["function"]["arguments"].empty());
}

TEST(OpenAiRequestTest, UsageMayGoWithEveryEvent) {
  const std::string start =
      R"(, "stream": true, "stream_options": {"continuous_usage_stats": true)";
  EXPECT_TRUE(Chat(start + R"(, "include_usage": true})").continuous_usage);
  EXPECT_FALSE(Chat(start + "}").continuous_usage);
}

TEST(OpenAiRequestTest, ThePromptAloneIsEchoedByOneTokenThatIsNotTold) {
  const OpenAiRequest alone = Completion(R"({"prompt": "p", "echo": true, "max_tokens": 0})");
  EXPECT_TRUE(alone.echoes_alone);
  EXPECT_EQ(alone.options.stop().max_tokens(), 1);
  EXPECT_FALSE(Completion(R"({"prompt": "p", "max_tokens": 0})").echoes_alone);
}

TEST(OpenAiRequestTest, ErrorsSayWhichFieldTheyAreAbout) {
  EXPECT_EQ(FieldOf(ParseCompletionRequest(R"({"prompt": "p", "n": "x"})").status()), "n");
  EXPECT_EQ(FieldOf(ParseCompletionRequest(R"({"prompt": "p", "m": 1})").status()), "m");
  const absl::Status status =
      ParseChatRequest(R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})")
          .status();
  EXPECT_EQ(FieldOf(status), "messages[0].content[0].text");
  for (const auto& [message, field] : std::map<std::string, std::string>{
           {R"({"role": "user", "content": {}})", "messages[0].content"},
           {R"({"role": "user", "content": [3]})", "messages[0].content[0]"},
           {R"({"role": "assistant", "tool_calls": [{"function": {"name": "f",
                "arguments": "["}}]})",
            "messages[0].tool_calls[0].function.arguments"}}) {
    EXPECT_EQ(FieldOf(ParseChatRequest(absl::StrCat(R"({"messages": [)", message, "]}")).status()),
              field);
  }
  EXPECT_EQ(FieldOf(absl::InvalidArgumentError("of none")), "");
}

TEST(OpenAiRequestTest, ThoughtsOfEarlierTurnsReachTheTemplateByEitherName) {
  for (const char* name : {"reasoning_content", "reasoning"}) {
    const auto request = ParseChatRequest(absl::StrCat(
        R"({"messages": [{"role": "assistant", "content": null, ")", name, R"(": "So."}]})"));
    ASSERT_TRUE(request.ok()) << request.status();
    EXPECT_EQ(request->chat["messages"][0]["reasoning_content"], "So.") << name;
    EXPECT_EQ(request->chat["messages"][0]["content"], "");
  }
}

TEST(OpenAiRequestTest, WrongChatsAreRefusedByName) {
  const std::string good = R"("messages": [{"role": "user", "content": "a"}])";
  for (const Refused& wrong : {
           Refused{R"("messages": [])", "messages must be"},
           {R"("prompt": "a")", "messages must be"},
           {R"("messages": [{"role": "cook", "content": "a"}])", "messages[0].role must be"},
           {R"("messages": [{"role": "user", "content": "a", "tool_calls": [{}]}])",
            "messages[0].tool_calls must be an array, of an assistant's"},
           {R"("messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}])",
            "messages[0].tool_calls[0].function.name is missing"},
           {R"("messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f",
               "arguments": "[]"}}]}])",
            "messages[0].tool_calls[0].function.arguments must be a JSON object"},
           {R"("messages": [{"role": "tool"}])", "messages[0].content is missing"},
           {R"("messages": [{"role": "user"}])", "messages[0].content is missing"},
           {R"("messages": [{"role": "user", "content": 3}])", "messages[0].content must be"},
           {R"("messages": ["a"])", "messages[0] must be an object"},
           {R"("messages": [{"role": "user", "content": [{"type": "image_url"}]}])", "\"text\""},
           {R"("top_logprobs": 1)", "top_logprobs is for"},
           {R"("max_tokens": 1, "max_completion_tokens": 2)", "max_completion_tokens is 2"},
           {R"("tools": [{"type": "custom"}])", "tools[0].type must be"},
           {R"("tools": [{}])", "tools[0].function is missing"},
           {R"("tools": {})", "tools must be an array of at most 128"},
           {R"("tools": [{"type": "function", "function": {"name": ""}}])",
            "tools[0].function.name must have 1 to 256 bytes"},
           {R"("tools": [{"type": "function", "function": {"name": "f", "parameters": []}}])",
            "tools[0].function.parameters must be an object"},
           {R"("functions": [{}])", "functions cannot be given"},
           {R"("separate_reasoning": false, "include_reasoning": false)",
            "include_reasoning must be true where separate_reasoning is false"},
           {R"("include_reasoning": false, "logprobs": true)",
            "include_reasoning must be true where logprobs are wanted"},
           {R"("reasoning_effort": "lots")",
            "reasoning_effort must be one of none, minimal, low, medium, high, xhigh, "
            "max, not \"lots\""},
           {R"("reasoning_effort": 3)", "reasoning_effort must be"},
           {R"("continue_final_message": true)",
            "continue_final_message is for a last message of the assistant"},
           {R"("continue_final_message": true, "add_generation_prompt": true)",
            "add_generation_prompt must be false where continue_final_message is true"},
           {R"("continue_final_message": 1)", "continue_final_message must be"},
           {R"("chat_template_kwargs": [])", "chat_template_kwargs must be an object"},
           {R"("response_format": {"type": "xml"})", "response_format.type must be text"},
           {R"("prediction": "a")", "prediction"},
           {R"("prediction": {"content": "a"})", "prediction.type must be \"content\""},
           {R"("prediction": {"type": "content"})", "prediction.content is missing"},
           {R"("prediction": {"type": "content", "content": 3})", "prediction.content must be"},
           {R"("echo": true)", "echo must be false"},
           {R"("add_special_tokens": true)", "add_special_tokens must be false"},
           {R"("use_beam_search": true)", "use_beam_search must be false"},
           {R"("length_penalty": 0.5)", "length_penalty must be 1"},
           {R"("messages": [{"role": "assistant", "prefix": true, "content": "a"}])",
            "unknown field \"messages[0].prefix\""},
           {R"("messages": [{"role": "assistant", "content": [{"type": "refusal"}]}])",
            "messages[0].content[0].refusal is missing"},
           {R"("messages": [{"role": "assistant", "refusal": {}}])",
            "messages[0].refusal must be a string"},
       }) {
    const std::string fields(wrong.body);
    const bool has_messages = fields.find("messages") != std::string::npos ||
                              fields.find("prompt\"") != std::string::npos;
    const auto request = ParseChatRequest("{" + fields + (has_messages ? "" : ", " + good) + "}");
    EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument) << wrong.body;
    EXPECT_THAT(std::string(request.status().message()), HasSubstr(wrong.error)) << wrong.body;
  }
}

// What a client may send by accident or by intent is answered, whatever it is.
TEST(OpenAiRequestTest, DamagedBodiesAreRefusedOrRead) {
  const std::string body =
      R"({"model": "m", "prompt": [[1, 2], "t"], "max_tokens": 7, "logit_bias": {"5": -1.5e2},
          "stop": ["x"], "structured_outputs": {"json": {"a": [1]}}, "stream": true, "stream_options": {"include_usage": true}, "n": 2,
          "messages": [{"role": "user", "content": [{"type": "text", "text": "\u00e9"}]}]})";
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string damaged = body;
    for (uint32_t edits = 1 + random() % 4; edits > 0; --edits) {
      const size_t at = random() % damaged.size();
      switch (random() % 3) {
        case 0:
          damaged[at] = static_cast<char>(random());
          break;
        case 1:
          damaged.erase(at, 1 + random() % 8);
          break;
        default:
          damaged.insert(at, damaged.substr(random() % damaged.size(), random() % 16));
      }
      if (damaged.empty()) damaged = "{";
    }
    for (const auto& request : {ParseCompletionRequest(damaged), ParseChatRequest(damaged)}) {
      if (request.ok()) continue;
      EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument) << damaged;
      EXPECT_FALSE(request.status().message().empty()) << damaged;
    }
  }
}

TEST(OpenAiRequestTest, PromptsAndMessagesHaveANumberLimit) {
  const auto with = [](int count) {
    std::string body = R"({"prompt": ["a")";
    for (int i = 1; i < count; ++i) body += R"(, "a")";
    return ParseCompletionRequest(body + "]}");
  };
  EXPECT_TRUE(with(kMaxPrompts).ok());
  EXPECT_THAT(std::string(with(kMaxPrompts + 1).status().message()), HasSubstr("at most 256"));
  const std::string message = R"({"role": "user", "content": "a"})";
  std::string messages = message;
  for (int i = 1; i < kMaxMessages; ++i) messages += "," + message;
  EXPECT_TRUE(ParseChatRequest(R"({"messages": [)" + messages + "]}").ok());
  EXPECT_THAT(std::string(ParseChatRequest(R"({"messages": [)" + messages + "," + message + "]}")
                              .status()
                              .message()),
              HasSubstr("messages are 2049: at most 2048"));
}

}  // namespace
}  // namespace lockstep
