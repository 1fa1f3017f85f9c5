#include "tests/e2e/delivery_checks.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <map>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "model/grammar/constraint.h"
#include "model/grammar/text_automaton.h"
#include "model/grammar/tool_calls.h"
#include "tests/e2e/text_oracle.h"

namespace lockstep::testing {
namespace {

constexpr double kTolerance = 1e-3;  // of sums and differences of log-probabilities in f32

// Adds what is wrong with one thing to a list, with its name.
class Checker {
 public:
  explicit Checker(Problems& problems, std::string where = "")
      : problems_(problems), where_(std::move(where)) {}
  template <typename... Words>
  void Check(bool holds, const Words&... words) {
    if (!holds) problems_.push_back(absl::StrCat(where_, words...));
  }
  void Add(const Problems& more) {
    for (const std::string& each : more) problems_.push_back(absl::StrCat(where_, each));
  }

 private:
  Problems& problems_;
  const std::string where_;
};

std::set<int32_t> StopTokens(const ServerFacts& facts, const v1::StopOptions& stop) {
  std::set<int32_t> tokens(stop.stop_token_ids().begin(), stop.stop_token_ids().end());
  if (!stop.ignore_eos()) {
    tokens.insert(facts.info.eos_token_ids().begin(), facts.info.eos_token_ids().end());
  }
  return tokens;
}

void CheckAccepted(const ServerFacts& facts, const v1::GenerateRequest& request, int prompt_tokens,
                   const v1::PromptAccepted& accepted, Checker& checker) {
  const int room = facts.max_model_len() - prompt_tokens;
  const int asked = request.stop().has_max_tokens() ? request.stop().max_tokens() : INT_MAX;
  const v1::SamplingOptions& sampling = request.sampling();
  checker.Check(accepted.num_prompt_tokens() == prompt_tokens, "accepted ",
                accepted.num_prompt_tokens(), " prompt tokens of ", prompt_tokens);
  checker.Check(accepted.max_tokens() == std::min(room, asked), "accepted max_tokens ",
                accepted.max_tokens(), ", asked ", asked, ", room ", room);
  checker.Check(!sampling.has_seed() || accepted.seed() == sampling.seed(), "another seed");
  checker.Check(accepted.num_outputs() == (sampling.has_num_outputs() ? sampling.num_outputs() : 1),
                "accepted ", accepted.num_outputs(), " outputs");
  checker.Check(!accepted.request_id().empty(), "no request_id");
  checker.Check(request.request_id().empty() || accepted.request_id() == request.request_id(),
                "another request_id");
  checker.Check(accepted.attachable() == facts.has_journal, "attachable: ", accepted.attachable());
}

void CheckPromptLogprobs(const ServerFacts& facts, const v1::GenerateRequest& request,
                         const std::vector<int32_t>& prompt, const Delivery& delivery,
                         Checker& checker) {
  const size_t given = delivery.prompt_logprobs.size();
  const bool wanted = request.output().has_prompt_logprobs();
  const size_t all = wanted ? prompt.size() - 1 : 0;
  checker.Check(given == all || (given < all && delivery.num_tokens() == 0), given,
                " prompt logprobs of ", all);
  for (size_t i = 0; i < std::min(given, all); ++i) {
    checker.Add(CheckLogprobs(facts, delivery.prompt_logprobs[i], prompt[i + 1],
                              request.output().prompt_logprobs()));
  }
}

void CheckTokens(const ServerFacts& facts, const v1::GenerateRequest& request,
                 const Delivery::Output& output, Checker& checker) {
  const auto& ids = output.token_ids;
  const std::set<int32_t> stops = StopTokens(facts, request.stop());
  for (size_t i = 0; i < ids.size(); ++i) {
    checker.Check(ids[i] >= 0 && ids[i] < facts.vocab_size(), "token id ", ids[i]);
    if (!stops.contains(ids[i])) continue;
    checker.Check(static_cast<int>(i) >= request.stop().min_tokens(), "stop token ", ids[i], " at ",
                  i, ", before min_tokens");
    checker.Check(i + 1 == ids.size(), "tokens after the stop token at ", i);
  }
  const bool wanted = request.output().has_logprobs();
  checker.Check(output.logprobs.size() == (wanted ? ids.size() : 0), output.logprobs.size(),
                " logprobs of ", ids.size(), " tokens");
  for (size_t i = 0; i < std::min(output.logprobs.size(), ids.size()); ++i) {
    checker.Add(CheckLogprobs(facts, output.logprobs[i], ids[i], request.output().logprobs()));
  }
  checker.Add(CheckChoices(request, output));
}

void CheckText(const ServerFacts& facts, const v1::GenerateRequest& request,
               const std::vector<int32_t>& prompt, const Delivery::Output& output,
               Checker& checker) {
  const bool has_ended = output.finished.has_value();
  if (facts.tokenizer == nullptr) {
    checker.Check(output.text.empty(), "text without a tokenizer");
    return;
  }
  const auto& ids = output.token_ids;
  const bool ends_with_stop_token =
      !ids.empty() && StopTokens(facts, request.stop()).contains(ids.back());
  const bool is_cut = has_ended && (output.finished->reason() == v1::FINISH_REASON_ABORTED ||
                                    output.finished->reason() == v1::FINISH_REASON_DEADLINE);
  const ExpectedText expected = TextOf(facts, request, prompt, ids,
                                       ends_with_stop_token ? TextEnd::kStopToken
                                       : is_cut             ? TextEnd::kCut
                                                            : TextEnd::kOpen);
  checker.Check(has_ended ? output.text == expected.text : expected.text.starts_with(output.text),
                "text \"", absl::CHexEscape(output.text), "\", expected \"",
                absl::CHexEscape(expected.text), "\"");
  if (expected.stop_string) {
    checker.Check(expected.stop_end > expected.num_certain_before_last,
                  "tokens after the stop string \"", *expected.stop_string, "\"");
  }
  if (!has_ended) return;
  checker.Check(output.finished->stop_string() == expected.stop_string.value_or(""),
                "stop string \"", output.finished->stop_string(), "\", expected \"",
                expected.stop_string.value_or(""), "\"");
}

v1::OutputConstraint::KindCase KindOf(const v1::GenerateRequest& request) {
  return request.constraint().kind_case();
}

// Without the thought.
absl::StatusOr<grammar::Grammar> GrammarOf(const v1::OutputConstraint& constraint) {
  using Kind = OutputConstraint::Kind;
  if (constraint.has_json_schema()) {
    return grammar::CompileConstraint({Kind::kJsonSchema, constraint.json_schema()});
  }
  if (constraint.has_regex()) return grammar::CompileConstraint({Kind::kRegex, constraint.regex()});
  if (constraint.has_tool_calls()) {
    const v1::ToolCalls& calls = constraint.tool_calls();
    grammar::ToolCalls asked{
        static_cast<grammar::ToolCalls::Form>(calls.form()), calls.required(), {}};
    for (const auto& function : calls.functions()) {
      asked.functions.push_back({function.name(), function.parameters()});
    }
    return grammar::CompileConstraint({Kind::kToolCalls, grammar::TextOf(asked)});
  }
  grammar::GrammarBuilder builder;
  std::vector<grammar::GrammarBuilder::Part> texts;
  for (const std::string& text : constraint.choices().texts()) texts.push_back(builder.Text(text));
  return builder.Build(builder.Choice(std::move(texts)));
}

// What may be the part of a text that the constraint is about; none: it has not come to that yet.
std::vector<std::string> ConstrainedParts(v1::Thought thought, bool is_free,
                                          const std::string& text, bool has_ended) {
  constexpr char kBegin[] = "<think>", kEnd[] = "</think>";
  if (thought == v1::THOUGHT_NONE) return {text};
  std::vector<std::string> parts;
  std::string rest = text;
  if (thought == v1::THOUGHT_ALLOWED) {
    const bool may_begin = std::string(kBegin).rfind(text, 0) == 0;
    if (may_begin && !has_ended) return {};
    const bool is_thought = text.rfind(kBegin, 0) == 0;
    // Where text is free, a thought is none of it.
    if (!is_thought || !is_free) parts.push_back(text);
    if (!is_thought) return parts;
    rest = text.substr(sizeof(kBegin) - 1);
  }
  const size_t end = rest.find(kEnd);
  if (end == std::string::npos) return has_ended ? parts : std::vector<std::string>();
  rest = rest.substr(end + sizeof(kEnd) - 1);
  for (int num_breaks = 0; num_breaks <= 4; ++num_breaks) {
    parts.push_back(rest);
    if (rest.empty() || rest[0] != '\n') break;
    rest = rest.substr(1);
  }
  return parts;
}

bool Fits(const grammar::Grammar& grammar, const std::string& text, bool has_ended) {
  grammar::TextAutomaton automaton(grammar);
  int32_t state = automaton.Start();
  for (const char byte : text) {
    state = automaton.Next(state, static_cast<uint8_t>(byte));
    if (state == grammar::TextAutomaton::kNoState) return false;
  }
  return !has_ended || automaton.may_end(state);
}

// All tokens but the one that ends the text, which may come where the text is complete.
void CheckConstraint(const ServerFacts& facts, const v1::GenerateRequest& request,
                     const Delivery::Output& output, Checker& checker) {
  if (KindOf(request) == v1::OutputConstraint::KIND_NOT_SET) return;
  const v1::OutputConstraint& constraint = request.constraint();
  const absl::StatusOr<grammar::Grammar> grammar = GrammarOf(constraint);
  checker.Check(grammar.ok(), "accepted, but ", grammar.status().ToString());
  if (!grammar.ok()) return;
  const auto& ends = facts.info.eos_token_ids();
  const v1::ToolCalls& calls = constraint.tool_calls();
  const bool is_free = constraint.has_tool_calls() && !calls.required() &&
                       calls.form() != v1::ToolCalls::FORM_MARKED;
  std::string text;
  bool has_ended = false;
  for (const int32_t id : output.token_ids) {
    has_ended = std::count(ends.begin(), ends.end(), id) > 0;
    if (has_ended) break;
    text += facts.tokenizer->TokenBytes(id);
  }
  const std::vector<std::string> parts =
      ConstrainedParts(constraint.thought(), is_free, text, has_ended);
  const bool fits = std::any_of(parts.begin(), parts.end(), [&](const std::string& part) {
    return Fits(*grammar, part, has_ended);
  });
  checker.Check(fits || (parts.empty() && !has_ended), "\"", absl::CHexEscape(text),
                has_ended ? "\" ends, but" : "\"", " does not fit its constraint");
}

void CheckFinish(const ServerFacts& facts, const v1::GenerateRequest& request, int max_tokens,
                 const Delivery::Output& output, Checker& checker) {
  const v1::OutputFinished& finished = *output.finished;
  const auto& ids = output.token_ids;
  const int num_tokens = static_cast<int>(ids.size());
  const bool stop_token = !ids.empty() && StopTokens(facts, request.stop()).contains(ids.back());
  checker.Check(num_tokens <= max_tokens, num_tokens, " tokens, max_tokens ", max_tokens);
  switch (finished.reason()) {
    case v1::FINISH_REASON_STOP:
      checker.Check(finished.has_stop_string() != finished.has_stop_token_id(),
                    "stopped by not exactly one of a string and a token");
      checker.Check(
          !finished.has_stop_token_id() || (stop_token && finished.stop_token_id() == ids.back()),
          "stop_token_id ", finished.stop_token_id());
      return;
    case v1::FINISH_REASON_LENGTH:
      checker.Check(num_tokens == max_tokens && !stop_token, "ends by length at ", num_tokens,
                    " of ", max_tokens);
      break;
    case v1::FINISH_REASON_ABORTED:
    case v1::FINISH_REASON_DEADLINE:
      checker.Check(num_tokens < max_tokens && !stop_token, "ended early at its end");
      break;
    default:
      checker.Check(false, "no finish reason");
  }
  checker.Check(!finished.has_stop_string() && !finished.has_stop_token_id(),
                "a stop without the reason");
}

void CheckUsage(const ServerFacts& facts, const Delivery& delivery, int prompt_tokens,
                Checker& checker) {
  const auto last =
      std::find_if(delivery.outputs.begin(), delivery.outputs.end(),
                   [](const auto& each) { return each.second.finished->has_usage(); });
  checker.Check(last != delivery.outputs.end(), "no usage");
  if (last == delivery.outputs.end()) return;
  const v1::Usage& usage = last->second.finished->usage();
  checker.Check(usage.num_prompt_tokens() == prompt_tokens, "usage: ", usage.num_prompt_tokens(),
                " prompt tokens of ", prompt_tokens);
  checker.Check(usage.num_output_tokens() == delivery.num_tokens(),
                "usage: ", usage.num_output_tokens(), " output tokens of ", delivery.num_tokens());
  // At least the last known token is computed.
  const bool beyond = delivery.attached && delivery.num_tokens() > 0;
  const int most = facts.caches_prefixes ? prompt_tokens - (beyond ? 0 : 1) : 0;
  checker.Check(usage.num_cached_prompt_tokens() >= 0 && usage.num_cached_prompt_tokens() <= most,
                "usage: ", usage.num_cached_prompt_tokens(), " cached tokens, at most ", most);
}

}  // namespace

Problems CheckLogprobs(const ServerFacts& facts, const v1::Logprobs& given, int32_t token,
                       int count) {
  Problems problems;
  Checker checker(problems, absl::StrCat("logprobs of token ", token, ": "));
  const double own = given.token().logprob();
  checker.Check(given.token().token_id() == token, "of token ", given.token().token_id());
  checker.Check(own <= 0.0, "its own is ", own);
  checker.Check(given.top_size() == std::min(count, facts.vocab_size()), given.top_size(),
                " most likely, asked for ", count);
  std::set<int32_t> ids;
  double sum = 0;
  double last = 0;
  for (const v1::TokenLogprob& top : given.top()) {
    checker.Check(top.logprob() <= last, "not in order");
    checker.Check(ids.insert(top.token_id()).second, "token ", top.token_id(), " twice");
    if (facts.tokenizer != nullptr) {
      checker.Check(top.text() == facts.tokenizer->TokenBytes(top.token_id()), "text of token ",
                    top.token_id());
    }
    if (top.token_id() == token) checker.Check(top.logprob() == own, "two values of one token");
    last = top.logprob();
    sum += std::exp(last);
  }
  checker.Check(sum <= 1 + kTolerance, "probabilities add up to ", sum);
  if (!ids.contains(token) && given.top_size() > 0) {
    checker.Check(own <= last, "likelier than the last of the most likely, and not of them");
  }
  return problems;
}

Problems CheckChoices(const v1::GenerateRequest& request, const Delivery::Output& output) {
  Problems problems;
  const v1::SamplingOptions& sampling = request.sampling();
  const bool repeats = sampling.has_repetition_penalty() && sampling.repetition_penalty() != 1.0f;
  const bool has_penalty = sampling.presence_penalty() != 0 || sampling.frequency_penalty() != 0;
  const bool is_adjusted = has_penalty || !sampling.logit_bias().empty();
  const bool is_constrained = KindOf(request) != v1::OutputConstraint::KIND_NOT_SET;
  if (repeats || is_constrained || !sampling.has_temperature()) return problems;
  const double temperature = sampling.temperature();
  std::map<int32_t, int> counts;
  const auto adjusted = [&](const v1::TokenLogprob& each) {
    const auto bias = sampling.logit_bias().find(each.token_id());
    const int count = counts[each.token_id()];
    return each.logprob() + (bias == sampling.logit_bias().end() ? 0 : bias->second) -
           sampling.frequency_penalty() * count - (count > 0 ? sampling.presence_penalty() : 0);
  };
  for (size_t i = 0; i < output.logprobs.size(); ++i) {
    const v1::Logprobs& given = output.logprobs[i];
    Checker checker(problems, absl::StrCat("choice ", i, ": "));
    const double own = adjusted(given.token());
    double best = own;
    double likelier = 0;  // probability of tokens before it
    for (const v1::TokenLogprob& top : given.top()) {
      best = std::max<double>(best, adjusted(top));
      if (top.logprob() > given.token().logprob()) likelier += std::exp(top.logprob());
    }
    ++counts[given.token().token_id()];
    if (static_cast<int>(i) < request.stop().min_tokens()) continue;  // the likeliest may be masked
    if (temperature == 0 || sampling.top_k() == 1) {
      checker.Check(own >= best - kTolerance, "not the likeliest: ", own, ", ", best);
      continue;
    }
    if (sampling.min_p() > 0) {
      checker.Check((own - best) / temperature >= std::log(sampling.min_p()) - kTolerance,
                    "below min_p");
    }
    if (is_adjusted) continue;
    const int top_k = sampling.top_k();
    if (top_k > 0 && given.top_size() >= top_k) {
      checker.Check(given.token().logprob() >= given.top(top_k - 1).logprob(), "beyond top_k");
    }
    if (sampling.has_top_p() && temperature == 1) {
      checker.Check(likelier < sampling.top_p() + kTolerance, "beyond top_p");
    }
  }
  return problems;
}

Problems CheckDelivery(const ServerFacts& facts, const v1::GenerateRequest& request,
                       const std::vector<int32_t>& prompt, const Delivery& delivery) {
  Problems problems = delivery.problems;
  Checker checker(problems);
  const int prompt_tokens = static_cast<int>(prompt.size());
  if (!delivery.accepted) {
    checker.Check(!delivery.status.ok(), "OK without having been accepted");
    return problems;
  }
  CheckAccepted(facts, request, prompt_tokens, *delivery.accepted, checker);
  CheckPromptLogprobs(facts, request, prompt, delivery, checker);
  bool deadline = false;
  for (const auto& [index, output] : delivery.outputs) {
    Checker of_output(problems, absl::StrCat("output ", index, ": "));
    of_output.Check(static_cast<int>(index) < delivery.accepted->num_outputs(), "is too many");
    CheckTokens(facts, request, output, of_output);
    CheckText(facts, request, prompt, output, of_output);
    CheckConstraint(facts, request, output, of_output);
    if (!output.finished) continue;
    CheckFinish(facts, request, delivery.accepted->max_tokens(), output, of_output);
    deadline = deadline || output.finished->reason() == v1::FINISH_REASON_DEADLINE;
  }
  checker.Check(!delivery.status.ok() || (delivery.complete() && !deadline),
                "OK without all of its outputs");
  if (delivery.complete()) CheckUsage(facts, delivery, prompt_tokens, checker);
  return problems;
}

}  // namespace lockstep::testing
