#include "tests/e2e/any_request.h"

#include <algorithm>
#include <climits>

namespace lockstep::testing {
namespace {

constexpr int kNumSharedPrefixes = 6;

// Prompts that begin alike, so that caches have something to find.
std::vector<int32_t> SharedPrefix(int which, int length, int vocab_size) {
  Dice dice(static_cast<uint64_t>(which));
  std::vector<int32_t> ids;
  for (int i = 0; i < length; ++i) ids.push_back(dice.Pick(0, vocab_size - 1));
  return ids;
}

int AnyPromptLength(Dice& dice, const ServerFacts& facts) {
  const int longest = facts.max_model_len() - 1;
  const int block = facts.info.kv_block_size();
  switch (dice.Pick(0, 9)) {
    case 0:
      return 1;
    case 1:
      return std::min(longest, block * dice.Pick(1, 8) + dice.Pick(-1, 1));
    case 2:
      return std::min(longest, dice.Pick(60, 180));
    case 3:
      return dice.OneIn(3) ? longest - dice.Pick(0, 2) : 2;
    default:
      return std::min(longest, dice.Pick(1, 40));
  }
}

void DrawTokenPrompt(Dice& dice, const ServerFacts& facts, v1::GenerateRequest& request) {
  const int length = std::max(1, AnyPromptLength(dice, facts));
  std::vector<int32_t> ids;
  if (dice.OneIn(2)) {
    ids = SharedPrefix(dice.Pick(1, kNumSharedPrefixes), dice.Pick(0, length), facts.vocab_size());
  } else if (dice.OneIn(2) && facts.info.has_bos_token_id()) {
    ids.push_back(facts.info.bos_token_id());
  }
  while (static_cast<int>(ids.size()) < length) ids.push_back(dice.Pick(0, facts.vocab_size() - 1));
  request.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
}

void DrawPrompt(Dice& dice, const ServerFacts& facts, v1::GenerateRequest& request) {
  if (facts.tokenizer == nullptr || dice.OneIn(2)) return DrawTokenPrompt(dice, facts, request);
  const int num_texts = facts.max_model_len() > 512 && dice.OneIn(6) ? 60 : 1;
  for (int i = 0; i < num_texts; ++i) request.mutable_text()->append(AnyText(dice));
  request.set_parse_special_tokens(dice.OneIn(3));
  if (dice.OneIn(3)) request.set_add_special_tokens(dice.OneIn(2));
  const auto prompt = PromptOf(facts, request);
  if (prompt.ok() && !prompt->empty() && static_cast<int>(prompt->size()) < facts.max_model_len()) {
    return;
  }
  request.Clear();
  DrawTokenPrompt(dice, facts, request);
}

void DrawDistribution(Dice& dice, v1::SamplingOptions& sampling) {
  constexpr float kTemperatures[] = {0.0f, 0.0f, 0.01f, 0.3f, 0.8f, 1.0f, 1.0f, 1.5f, 100.0f};
  constexpr int kTopK[] = {0, 1, 2, 5, 20, 50, 511, INT_MAX};
  constexpr float kTopP[] = {1e-6f, 0.1f, 0.5f, 0.9f, 0.99f, 1.0f};
  constexpr float kMinP[] = {0.0f, 1e-6f, 0.05f, 0.3f, 1.0f};
  if (!dice.OneIn(8)) sampling.set_temperature(dice.Of(kTemperatures));
  if (dice.OneIn(3)) sampling.set_top_k(dice.Of(kTopK));
  if (dice.OneIn(3)) sampling.set_top_p(dice.Of(kTopP));
  if (dice.OneIn(4)) sampling.set_min_p(dice.Of(kMinP));
}

void DrawPenalties(Dice& dice, int vocab_size, v1::SamplingOptions& sampling) {
  constexpr float kRepetition[] = {1e-3f, 0.8f, 1.0f, 1.1f, 2.0f, 10.0f};
  constexpr float kAdditive[] = {-2.0f, -0.5f, 0.0f, 0.7f, 2.0f};
  constexpr float kBias[] = {-100.0f, -100.0f, -3.0f, 0.0f, 2.5f, 5.0f, 100.0f};
  if (dice.OneIn(4)) sampling.set_repetition_penalty(dice.Of(kRepetition));
  if (dice.OneIn(4)) sampling.set_presence_penalty(dice.Of(kAdditive));
  if (dice.OneIn(4)) sampling.set_frequency_penalty(dice.Of(kAdditive));
  if (!dice.OneIn(5)) return;
  const int most = std::min(1024, vocab_size);
  const int count = dice.OneIn(8) ? most : dice.Pick(1, 4);
  const int first = dice.Pick(0, vocab_size - count);
  for (int i = 0; i < count; ++i) {
    const int token = count > 4 ? first + i : dice.Pick(0, vocab_size - 1);
    (*sampling.mutable_logit_bias())[token] = dice.Of(kBias);
  }
}

void DrawStops(Dice& dice, const ServerFacts& facts, int room, v1::StopOptions& stop) {
  switch (dice.Pick(0, 11)) {
    case 0:
      stop.set_max_tokens(1);
      break;
    case 1:
      stop.set_max_tokens(dice.OneIn(3) ? INT_MAX : room + dice.Pick(0, 1));
      break;
    case 2:
      break;  // what is left
    default:
      stop.set_max_tokens(std::min(room, dice.Pick(1, 50)));
  }
  const int most = std::min(room, stop.has_max_tokens() ? stop.max_tokens() : room);
  if (dice.OneIn(4)) stop.set_min_tokens(dice.OneIn(4) ? most : dice.Pick(0, std::min(most, 20)));
  stop.set_ignore_eos(dice.OneIn(3));
  stop.set_include_stop_string(dice.OneIn(3));
  const int num_tokens = dice.OneIn(5) ? dice.OneIn(6) ? 64 : dice.Pick(1, 12) : 0;
  for (int i = 0; i < num_tokens; ++i) {
    stop.add_stop_token_ids(dice.Pick(0, facts.vocab_size() - 1));
  }
  if (facts.tokenizer == nullptr || !dice.OneIn(3)) return;
  const char* const kStrings[] = {
      " the", "the", "he", "e", ".",   "\n",           "a ",
      "Lily", "é",   "ed", " ", "s w", "\xEF\xBF\xBD", "\xEF\xBF\xBD\xEF\xBF\xBD"};
  const int num_strings = dice.OneIn(8) ? 16 : dice.Pick(1, 3);
  for (int i = 0; i < num_strings; ++i) {
    stop.add_stop_strings(dice.OneIn(20) ? std::string(256, 'x') : std::string(dice.Of(kStrings)));
  }
}

// What takes few tokens, many or any number; whose texts end by themselves, may end or must be cut.
void DrawConstraint(Dice& dice, v1::GenerateRequest& request) {
  const char* const kRegexes[] = {"[a-z ]{3,20}\\.",
                                  "(yes|no|Mary (took|gave) the red ball)!",
                                  ".{0,12}",
                                  "[0-9]+(,[0-9]{3})*",
                                  "([A-Z][a-z]*é ?)*",
                                  "(日本|中文|🙂){1,4}",
                                  "\\d{4}-\\d\\d-\\d\\d( \\d\\d:\\d\\d)?"};
  const char* const kSchemas[] = {
      R"({})", R"({"type": "object"})",
      R"({"type": "array", "items": {"enum": ["red", 1, null]}, "maxItems": 5})",
      R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 9},
          "age": {"type": "integer", "minimum": 3, "maximum": 120}, "tall": {"type": "boolean"}},
          "required": ["name", "tall"], "additionalProperties": false})",
      R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object",
          "properties": {"leaf": {"type": "number"}, "branches": {"type": "array",
          "items": {"$ref": "#/$defs/tree"}}}, "additionalProperties": false}}})"};
  const char* const kEnds[] = {"x", "y", "zz"};
  v1::OutputConstraint& constraint = *request.mutable_constraint();
  switch (dice.Pick(0, 4)) {
    case 4: {
      v1::ToolCalls& calls = *constraint.mutable_tool_calls();
      calls.set_form(static_cast<v1::ToolCalls::Form>(dice.Pick(0, 2)));
      calls.set_required(!dice.OneIn(3));
      for (int i = dice.Pick(1, 3); i > 0; --i) {
        v1::ToolCalls::Function& function = *calls.add_functions();
        function.set_name(AnyText(dice) + dice.Of(kEnds));
        if (!dice.OneIn(3)) function.set_parameters(dice.Of(kSchemas));
      }
      break;
    }
    case 0:
      for (int i = dice.Pick(1, 3); i > 0; --i) {
        constraint.mutable_choices()->add_texts(AnyText(dice) + dice.Of(kEnds));
      }
      break;
    case 1:
      constraint.set_regex(dice.Of(kRegexes));
      break;
    default:
      constraint.set_json_schema(dice.Of(kSchemas));
  }
  if (dice.OneIn(4)) {
    constraint.set_thought(dice.OneIn(2) ? v1::THOUGHT_BEGUN : v1::THOUGHT_ALLOWED);
  }
  request.mutable_stop()->clear_ignore_eos();
  request.mutable_stop()->clear_min_tokens();
}

// What the models here like to say, or what nobody says.
void DrawPrediction(Dice& dice, v1::GenerateRequest& request) {
  const char* const kLikely[] = {
      "Once upon a time, there was a little girl named Lily. She loved to play outside in the "
      "park. "
      "One day, she saw a big, red ball. She wanted to play with it, but it was too high.",
      "The red ball is with Tom in the library.", "{\"name\": \"Lily\", \"tall\": true}"};
  request.set_prediction(dice.OneIn(4) ? AnyText(dice) : dice.Of(kLikely));
}

void DrawOutput(Dice& dice, v1::OutputOptions& output) {
  constexpr int kCounts[] = {0, 1, 5, 20};
  if (!dice.OneIn(3)) output.set_logprobs(dice.Of(kCounts));
  if (dice.OneIn(6)) output.set_prompt_logprobs(dice.Of(kCounts));
  output.set_include_special_tokens(dice.OneIn(3));
}

// A long prompt that is told of token by token and gives way to all others: what was told may not
// be told again.
void MakeLongReading(Dice& dice, const ServerFacts& facts, v1::GenerateRequest& request) {
  const int longest = std::min(facts.max_model_len() - 2, 400);
  auto& ids = *request.mutable_token_ids()->mutable_ids();
  ids.Clear();
  for (int i = dice.Pick(longest / 2, longest); i > 0; --i) {
    ids.Add(dice.Pick(0, facts.vocab_size() - 1));
  }
  request.mutable_stop()->set_min_tokens(0);
  request.mutable_stop()->set_max_tokens(2);
  request.mutable_output()->set_prompt_logprobs(1);
  request.set_priority(1000);
}

std::string AnyCharacters(Dice& dice, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += static_cast<char>(dice.Pick(0x20, 0x7E));
  return text;
}

}  // namespace

std::string AnyText(Dice& dice) {
  const std::string kPieces[] = {"Once upon a time",
                                 " there was",
                                 " a little girl",
                                 "\n\n",
                                 "  ",
                                 " ",
                                 "\t",
                                 "é",
                                 "ß",
                                 "Ω",
                                 "中文",
                                 "日本語",
                                 "한국어",
                                 "🙂",
                                 "👩‍👩‍👧",
                                 "🇩🇪",
                                 "e\u0301",
                                 "\u200b",
                                 "\u202e",
                                 "\ufeff",
                                 "\uffff",
                                 std::string(1, '\0'),
                                 "\x01",
                                 "</s>",
                                 "<s>",
                                 "<unk>",
                                 "<|begin|>",
                                 "<|end|>",
                                 "<0x0A>",
                                 "Mary",
                                 " took",
                                 " the red ball",
                                 ".",
                                 "?!",
                                 "123",
                                 "4567890",
                                 "\r\n",
                                 "\U0010FFFF"};
  std::string text;
  const int count = dice.OneIn(30) ? 0 : dice.Pick(1, 10);
  for (int i = 0; i < count; ++i) text += dice.Of(kPieces);
  return text;
}

v1::GenerateRequest AnyRequest(Dice& dice, const ServerFacts& facts) {
  v1::GenerateRequest request;
  DrawPrompt(dice, facts, request);
  const auto prompt = PromptOf(facts, request);
  const int room = facts.max_model_len() - static_cast<int>(prompt->size());
  DrawDistribution(dice, *request.mutable_sampling());
  DrawPenalties(dice, facts.vocab_size(), *request.mutable_sampling());
  request.mutable_sampling()->set_seed(dice.OneIn(8) ? dice.Bits() | 1ull << 63
                                                     : static_cast<uint64_t>(dice.Pick(0, 9)));
  if (dice.OneIn(6)) request.mutable_sampling()->set_num_outputs(dice.Pick(1, 4));
  DrawStops(dice, facts, room, *request.mutable_stop());
  DrawOutput(dice, *request.mutable_output());
  if (dice.OneIn(100)) {
    request.mutable_sampling()->set_num_outputs(64);
    request.mutable_stop()->set_min_tokens(0);
    request.mutable_stop()->set_max_tokens(std::min(room, 4));
  }
  // Its own: others of the same name may run.
  if (dice.OneIn(4)) request.set_request_id(AnyCharacters(dice, dice.OneIn(4) ? 128 : 24));
  if (dice.OneIn(4)) request.set_cache_salt(std::string(dice.OneIn(4) ? 128 : 1, 'a'));
  if (dice.OneIn(4)) request.set_priority(dice.OneIn(3) ? -1000 : dice.Pick(-2, 1000));
  if (dice.OneIn(8)) MakeLongReading(dice, facts, request);
  if (facts.tokenizer != nullptr && dice.OneIn(4)) DrawConstraint(dice, request);
  if (facts.tokenizer != nullptr && dice.OneIn(3)) DrawPrediction(dice, request);
  return request;
}

}  // namespace lockstep::testing
