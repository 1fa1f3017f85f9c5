#include "launcher/bench/workload.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "model/json_integer.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

using Json = nlohmann::json;

// std::uniform_int_distribution differs between standard libraries; this does not. The bias of the
// remainder is below 2^-32.
int64_t UniformInt(std::mt19937_64& random, int64_t min, int64_t max) {
  return min + static_cast<int64_t>(random() % static_cast<uint64_t>(max - min + 1));
}

// In (0, 1].
double UniformReal(std::mt19937_64& random) {
  return static_cast<double>((random() >> 11) + 1) * 0x1p-53;
}

absl::Status RefuseLine(size_t line, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, " of the prompts file: ", why));
}

absl::StatusOr<BenchPrompt> ParseObject(const Json& object, size_t line) {
  BenchPrompt prompt;
  if (object.contains("prompt") && object["prompt"].is_string()) {
    prompt.text = object["prompt"].get<std::string>();
  } else if (object.contains("token_ids") && object["token_ids"].is_array()) {
    for (const Json& id : object["token_ids"]) {
      const std::optional<int64_t> integer = IntegerIn(id, 0, INT32_MAX);
      if (!integer) return RefuseLine(line, "token_ids holds something that is not a token id");
      prompt.token_ids.push_back(static_cast<int32_t>(*integer));
    }
  } else {
    return RefuseLine(line, "neither a \"prompt\" string nor a \"token_ids\" array");
  }
  if (object.contains("max_tokens")) {
    const std::optional<int64_t> integer = IntegerIn(object["max_tokens"], 1, INT32_MAX);
    if (!integer) return RefuseLine(line, "max_tokens is not a whole number from 1 on");
    prompt.max_tokens = *integer;
  }
  return prompt;
}

absl::StatusOr<BenchPrompt> ParseLine(absl::string_view text, size_t line) {
  if (text.front() != '{') {
    if (FirstInvalidUtf8(text)) return RefuseLine(line, "not UTF-8 text");
    return BenchPrompt{std::string(text), {}, 0};
  }
  const Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return RefuseLine(line, "begins with { but is not a JSON object");
  return ParseObject(object, line);
}

}  // namespace

ArrivalClock::ArrivalClock(Process process, double rate, uint64_t seed)
    : process_(process), rate_(rate), random_(seed) {
  LS_CHECK(rate > 0.0) << rate;
}

double ArrivalClock::Next() {
  if (process_ == Process::kFixed) {
    const double now = next_;
    next_ += 1.0 / rate_;
    return now;
  }
  next_ += -std::log(UniformReal(random_)) / rate_;  // exponential gaps
  return next_;
}

absl::StatusOr<std::vector<BenchPrompt>> ParsePromptLines(absl::string_view content) {
  std::vector<BenchPrompt> prompts;
  size_t line = 0;
  for (absl::string_view text : absl::StrSplit(content, '\n')) {
    ++line;
    text = absl::StripAsciiWhitespace(text);
    if (text.empty()) continue;
    ASSIGN_OR_RETURN(BenchPrompt prompt, ParseLine(text, line));
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) return absl::InvalidArgumentError("the prompts file holds no prompt");
  return prompts;
}

Workload::Workload(WorkloadOptions options) : options_(std::move(options)) {
  LS_CHECK(!options_.prompts.empty() ||
           options_.vocab_size > static_cast<int32_t>(options_.excluded_ids.size()));
}

void Workload::SetRandomPrompt(std::mt19937_64& random, v1::GenerateRequest& request) const {
  const int64_t length = UniformInt(random, options_.input_len.min, options_.input_len.max);
  auto& ids = *request.mutable_token_ids()->mutable_ids();
  ids.Reserve(static_cast<int>(length));
  const std::vector<int32_t>& excluded = options_.excluded_ids;
  while (ids.size() < length) {
    const auto id = static_cast<int32_t>(UniformInt(random, 0, options_.vocab_size - 1));
    if (std::find(excluded.begin(), excluded.end(), id) == excluded.end()) ids.Add(id);
  }
}

v1::GenerateRequest Workload::Request(uint64_t index) const {
  std::seed_seq seed{options_.seed, options_.seed >> 32, index, index >> 32};
  std::mt19937_64 random(seed);
  v1::GenerateRequest request;
  int64_t max_tokens = UniformInt(random, options_.output_len.min, options_.output_len.max);
  if (options_.prompts.empty()) {
    SetRandomPrompt(random, request);
  } else {
    const BenchPrompt& prompt = options_.prompts[index % options_.prompts.size()];
    if (prompt.token_ids.empty()) {
      request.set_text(prompt.text);
    } else {
      request.mutable_token_ids()->mutable_ids()->Assign(prompt.token_ids.begin(),
                                                         prompt.token_ids.end());
    }
    if (prompt.max_tokens > 0) max_tokens = prompt.max_tokens;
  }
  request.mutable_stop()->set_max_tokens(static_cast<int32_t>(max_tokens));
  request.mutable_stop()->set_ignore_eos(options_.ignore_eos);
  request.mutable_sampling()->set_seed(random());
  if (options_.temperature) request.mutable_sampling()->set_temperature(*options_.temperature);
  return request;
}

}  // namespace lockstep
