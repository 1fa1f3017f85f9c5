#include <climits>
#include <cmath>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/e2e/any_request.h"

namespace lockstep::testing {
namespace {

using Request = v1::GenerateRequest;
using Named = std::vector<std::string>;
// Spoils a right request and says what its refusal must name.
using Spoil = std::function<Named(Dice&, const ServerFacts&, Request&)>;

float AnyOf(Dice& dice, std::initializer_list<float> values) { return dice.Of(values); }

std::string Shown(float value) { return absl::StrCat(value); }

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The prompt's fields and those of the request itself.
const std::vector<Spoil>& WrongWhole() {
  static const auto& spoils = *new std::vector<Spoil>{
      [](Dice&, const ServerFacts&, Request& r) -> Named {
        r.set_request_id(std::string(129, 'i'));
        return {"request_id", "129", "128"};
      },
      [](Dice& dice, const ServerFacts&, Request& r) -> Named {
        const char* const kBytes[] = {"\x1f", "\x7f", "é", "\n"};
        r.set_request_id(absl::StrCat("ab", dice.Of(kBytes)));
        return {"request_id", "byte 2", "printable ASCII"};
      },
      [](Dice&, const ServerFacts&, Request& r) -> Named {
        r.clear_prompt();
        return {"prompt"};
      },
      [](Dice& dice, const ServerFacts& facts, Request& r) -> Named {
        r.mutable_stop()->clear_ignore_eos();
        r.mutable_stop()->clear_min_tokens();
        v1::OutputConstraint& constraint = *r.mutable_constraint();
        if (dice.OneIn(5)) return {"constraint is empty"};
        constraint.set_regex("a+");
        if (facts.tokenizer == nullptr) return {"constraint", "tokenizer.json"};
        switch (dice.Pick(0, 6)) {
          case 5:
            constraint.mutable_tool_calls()->add_functions()->set_parameters("{}");
            return {"constraint.tool_calls", "function 0 has no name"};
          case 6:
            constraint.set_thought(static_cast<v1::Thought>(dice.OneIn(2) ? 3 : -1));
            return {"constraint.thought", "must be 0 to 2"};
          case 0:
            r.mutable_stop()->set_ignore_eos(true);
            return {"ignore_eos"};
          case 1:
            constraint.set_regex(std::string(65537, 'a'));
            return {"constraint", "65537", "65536"};
          case 2:
            constraint.set_regex("ab(?=c)");
            return {"constraint.regex", "byte 2", "look-ahead"};
          case 3:
            constraint.set_json_schema(R"({"properties": {"age": {"not": {}}}})");
            return {"constraint.json_schema", "#/properties/age", "not"};
          default:
            constraint.mutable_choices();
            return {"constraint.choices"};
        }
      },
      [](Dice&, const ServerFacts&, Request& r) -> Named {
        r.set_cache_salt(std::string(129, 's'));
        return {"cache_salt", "129", "128"};
      },
      [](Dice& dice, const ServerFacts&, Request& r) -> Named {
        r.set_priority(dice.OneIn(2) ? 1001 : -1001);
        return {"priority", absl::StrCat(r.priority()), "1000"};
      },
      [](Dice&, const ServerFacts&, Request& r) -> Named {
        r.mutable_token_ids()->Clear();
        return {"prompt", "empty"};
      },
      [](Dice& dice, const ServerFacts& facts, Request& r) -> Named {
        const int id = dice.OneIn(2) ? facts.vocab_size() : -1;
        r.mutable_token_ids()->Clear();
        r.mutable_token_ids()->add_ids(1);
        r.mutable_token_ids()->add_ids(id);
        r.mutable_stop()->clear_min_tokens();
        return {"token_ids[1]", absl::StrCat(id), absl::StrCat(facts.vocab_size() - 1)};
      },
      [](Dice& dice, const ServerFacts& facts, Request& r) -> Named {
        const int count = facts.max_model_len() + (dice.OneIn(2) ? 0 : dice.Pick(1, 9));
        r.mutable_token_ids()->Clear();
        for (int i = 0; i < count; ++i) r.mutable_token_ids()->add_ids(1);
        return {"prompt", absl::StrCat(count), absl::StrCat(facts.max_model_len())};
      },
      [](Dice& dice, const ServerFacts& facts, Request& r) -> Named {
        if (facts.tokenizer == nullptr) {
          r.set_text("text");
          return {"tokenizer.json"};
        }
        r.set_text(std::string(dice.OneIn(2) ? 3000 : 300'000, '\xEF'));
        std::string& text = *r.mutable_text();
        for (size_t i = 0; i < text.size(); ++i) text[i] = "日"[i % 3];
        return {absl::StrCat(facts.max_model_len())};
      }};
  return spoils;
}

const std::vector<Spoil>& WrongSampling() {
  static const auto& spoils = *new std::vector<Spoil>{
      [](Dice& dice, const ServerFacts&, Request& r) -> Named {
        r.mutable_sampling()->set_num_outputs(dice.OneIn(3) ? 65 : dice.OneIn(2) ? 0 : INT_MIN);
        return {"num_outputs", absl::StrCat(r.sampling().num_outputs()), "64"};
      },
      [](Dice& dice, const ServerFacts&, Request& r) -> Named {
        const float value = AnyOf(dice, {0.0099f, -1.0f, 100.01f, kNan, kInfinity, 1e-30f});
        r.mutable_sampling()->set_temperature(value);
        return {"temperature", Shown(value), "0.01 to 100"};
      },
      [](Dice& dice, const ServerFacts&, Request& r) -> Named {
        r.mutable_sampling()->set_top_k(dice.OneIn(2) ? -1 : INT_MIN);
        return {"top_k", absl::StrCat(r.sampling().top_k()), "at least 0"};
      },
      [](Dice& dice, const ServerFacts&, Request& r) -> Named {
        const float value = AnyOf(dice, {0.0f, -0.1f, 1.001f, kNan, kInfinity});
        r.mutable_sampling()->set_top_p(value);
        return {"top_p", Shown(value), "at most 1"};
      },
      [](Dice& dice, const ServerFacts&, Request& r) -> Named {
        const float value = AnyOf(dice, {-0.001f, 1.001f, kNan, -kInfinity});
        r.mutable_sampling()->set_min_p(value);
        return {"min_p", Shown(value), "0 to 1"};
      },
      [](Dice& dice, const ServerFacts&, Request& r) -> Named {
        const float value = AnyOf(dice, {0.0f, -1.0f, 10.01f, kNan});
        r.mutable_sampling()->set_repetition_penalty(value);
        return {"repetition_penalty", Shown(value), "at most 10"};
      },
      [](Dice& dice, const ServerFacts&, Request& r) -> Named {
        const float value = AnyOf(dice, {-2.001f, 2.001f, kNan, kInfinity});
        if (dice.OneIn(2)) {
          r.mutable_sampling()->set_presence_penalty(value);
          return {"presence_penalty", Shown(value), "-2 to 2"};
        }
        r.mutable_sampling()->set_frequency_penalty(value);
        return {"frequency_penalty", Shown(value), "-2 to 2"};
      },
      [](Dice& dice, const ServerFacts&, Request& r) -> Named {
        const float value = AnyOf(dice, {-100.01f, 100.01f, kNan, kInfinity});
        r.mutable_sampling()->clear_logit_bias();
        (*r.mutable_sampling()->mutable_logit_bias())[1] = value;
        return {"logit_bias", "token 1", Shown(value), "-100 to 100"};
      },
      [](Dice& dice, const ServerFacts& facts, Request& r) -> Named {
        const int id = dice.OneIn(2) ? facts.vocab_size() : -1;
        r.mutable_sampling()->clear_logit_bias();
        (*r.mutable_sampling()->mutable_logit_bias())[id] = 1;
        return {"logit_bias", absl::StrCat(id), absl::StrCat(facts.vocab_size() - 1)};
      },
      [](Dice&, const ServerFacts&, Request& r) -> Named {
        r.mutable_sampling()->clear_logit_bias();
        for (int i = 0; i < 1025; ++i) (*r.mutable_sampling()->mutable_logit_bias())[i] = 1;
        return {"logit_bias", "1025", "1024"};
      }};
  return spoils;
}

const std::vector<Spoil>& WrongStops() {
  static const auto& spoils = *new std::vector<Spoil>{
      [](Dice& dice, const ServerFacts&, Request& r) -> Named {
        r.mutable_stop()->set_max_tokens(dice.OneIn(2) ? 0 : INT_MIN);
        return {"max_tokens", absl::StrCat(r.stop().max_tokens()), "[1, "};
      },
      [](Dice& dice, const ServerFacts&, Request& r) -> Named {
        r.mutable_stop()->set_max_tokens(7);
        r.mutable_stop()->set_min_tokens(dice.OneIn(2) ? 8 : -1);
        return {"min_tokens", absl::StrCat(r.stop().min_tokens()), "[0, 7]"};
      },
      [](Dice&, const ServerFacts& facts, Request& r) -> Named {
        const auto prompt = PromptOf(facts, r);
        const int room = facts.max_model_len() - static_cast<int>(prompt->size());
        r.mutable_stop()->clear_max_tokens();
        r.mutable_stop()->set_min_tokens(room + 1);
        return {"min_tokens", absl::StrCat(room + 1), absl::StrCat(room)};
      },
      [](Dice&, const ServerFacts&, Request& r) -> Named {
        r.mutable_stop()->clear_stop_token_ids();
        for (int i = 0; i < 65; ++i) r.mutable_stop()->add_stop_token_ids(i);
        return {"stop_token_ids", "65", "64"};
      },
      [](Dice& dice, const ServerFacts& facts, Request& r) -> Named {
        const int id = dice.OneIn(2) ? facts.vocab_size() : -1;
        r.mutable_stop()->clear_stop_token_ids();
        r.mutable_stop()->add_stop_token_ids(id);
        return {"stop_token_ids", absl::StrCat(id), absl::StrCat(facts.vocab_size() - 1)};
      },
      [](Dice&, const ServerFacts&, Request& r) -> Named {
        r.mutable_stop()->clear_stop_strings();
        for (int i = 0; i < 17; ++i) r.mutable_stop()->add_stop_strings("s");
        return {"stop_strings", "17", "16"};
      },
      [](Dice& dice, const ServerFacts&, Request& r) -> Named {
        const size_t length = dice.OneIn(2) ? 257 : 0;
        r.mutable_stop()->clear_stop_strings();
        r.mutable_stop()->add_stop_strings(std::string(length, 's'));
        return {"stop_strings[0]", absl::StrCat(length), "256"};
      },
      [](Dice& dice, const ServerFacts&, Request& r) -> Named {
        const int count = dice.OneIn(2) ? 21 : -1;
        if (dice.OneIn(2)) {
          r.mutable_output()->set_prompt_logprobs(count);
          return {"prompt_logprobs", absl::StrCat(count), "20"};
        }
        r.mutable_output()->set_logprobs(count);
        return {"logprobs", absl::StrCat(count), "20"};
      }};
  return spoils;
}

}  // namespace

WrongRequest AnyWrongRequest(Dice& dice, const ServerFacts& facts) {
  WrongRequest wrong{.request = AnyRequest(dice, facts), .named = {}};
  wrong.request.clear_constraint();  // some of the spoils would be wrong beside it for its sake
  const auto& spoils = dice.OneIn(3)   ? WrongWhole()
                       : dice.OneIn(2) ? WrongSampling()
                                       : WrongStops();
  wrong.named = dice.Of(spoils)(dice, facts, wrong.request);
  return wrong;
}

}  // namespace lockstep::testing
