#include "tests/e2e/text_oracle.h"

#include <algorithm>

namespace lockstep::testing {
namespace {

// The well-formed characters' shapes: the first byte's range, the second's, how many bytes.
struct Shape {
  unsigned first_low, first_high, second_low, second_high;
  size_t num_bytes;
};
constexpr Shape kShapes[] = {
    {0x00, 0x7F, 0, 0, 1},       {0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3},
    {0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3},
    {0xF0, 0xF0, 0x90, 0xBF, 4}, {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4}};

// How many bytes at the front have the shape's beginning; 0: not even one.
size_t NumFitting(const Shape& shape, std::string_view bytes) {
  size_t n = 0;
  while (n < std::min(bytes.size(), shape.num_bytes)) {
    const auto byte = static_cast<unsigned char>(bytes[n]);
    const unsigned low = n == 0 ? shape.first_low : n == 1 ? shape.second_low : 0x80;
    const unsigned high = n == 0 ? shape.first_high : n == 1 ? shape.second_high : 0xBF;
    if (byte < low || byte > high) break;
    ++n;
  }
  return n;
}

class OutputText {
 public:
  OutputText(const ServerFacts& facts, const v1::GenerateRequest& request,
             const std::vector<int32_t>& prompt)
      : tokenizer_(*facts.tokenizer), request_(request) {
    at_start_ = !request.has_constraint() &&
                std::all_of(prompt.begin(), prompt.end(),
                            [&](int32_t id) { return tokenizer_.IsSpecial(id); });
  }

  // Of the first `count` tokens.
  std::string Bytes(const std::vector<int32_t>& ids, size_t count, bool ends_with_stop) const {
    std::string bytes;
    for (size_t i = 0; i < count; ++i) {
      const bool stops = ends_with_stop && i + 1 == ids.size();
      const bool special = tokenizer_.IsSpecial(ids[i]);
      if (special && !request_.output().include_special_tokens()) continue;
      if (stops && !request_.stop().include_stop_string()) continue;
      if (stops && special && request_.has_constraint()) continue;
      bytes += tokenizer_.TokenBytes(ids[i]);
    }
    return bytes;
  }

  std::string Certain(const std::vector<int32_t>& ids, size_t count, bool ends_with_stop) const {
    return Start(Repaired(Bytes(ids, count, ends_with_stop), true));
  }

  std::string Whole(const std::vector<int32_t>& ids, bool ends_with_stop) const {
    return Start(Repaired(Bytes(ids, ids.size(), ends_with_stop), false));
  }

 private:
  // SentencePiece puts a space before every text, which is not shown.
  std::string Start(std::string text) const {
    if (at_start_ && StripsSpace() && text.starts_with(' ')) text.erase(0, 1);
    return text;
  }
  bool StripsSpace() const {
    const auto ids = tokenizer_.Encode("a", {.add_special_tokens = false});
    return ids.ok() && !ids->empty() && tokenizer_.TokenBytes(ids->front()).starts_with(' ');
  }

  const Tokenizer& tokenizer_;
  const v1::GenerateRequest& request_;
  bool at_start_;
};

}  // namespace

std::string Repaired(std::string_view bytes, bool drop_incomplete) {
  std::string text;
  while (!bytes.empty()) {
    size_t fitting = 0;
    bool whole = false;
    for (const Shape& shape : kShapes) {
      const size_t n = NumFitting(shape, bytes);
      if (n <= fitting) continue;
      fitting = n;
      whole = n == shape.num_bytes;
    }
    const bool incomplete = !whole && fitting > 0 && fitting == bytes.size();
    if (incomplete && drop_incomplete) break;
    text += whole ? bytes.substr(0, fitting) : std::string_view("\xEF\xBF\xBD");
    bytes.remove_prefix(std::max<size_t>(fitting, 1));
  }
  return text;
}

ExpectedText TextOf(const ServerFacts& facts, const v1::GenerateRequest& request,
                    const std::vector<int32_t>& prompt, const std::vector<int32_t>& token_ids,
                    TextEnd end) {
  const bool ends_with_stop_token = end == TextEnd::kStopToken;
  const OutputText output(facts, request, prompt);
  const size_t num_tokens = token_ids.size();
  const size_t min_tokens = static_cast<size_t>(request.stop().min_tokens());
  ExpectedText expected;
  expected.text = output.Whole(token_ids, ends_with_stop_token);
  if (num_tokens > 0) {
    expected.num_certain_before_last =
        output.Certain(token_ids, num_tokens - 1, ends_with_stop_token).size();
  }
  // Stop strings may end in what became certain after min_tokens.
  const size_t from =
      output.Certain(token_ids, std::min(min_tokens, num_tokens), ends_with_stop_token).size();
  const size_t last_end = end == TextEnd::kCut ? output.Certain(token_ids, num_tokens, false).size()
                                               : expected.text.size();
  size_t best_end = std::string::npos;
  for (const std::string& stop : request.stop().stop_strings()) {
    const size_t begin = expected.text.find(stop, from - std::min(from, stop.size() - 1));
    if (begin == std::string::npos) continue;
    const size_t stop_end = begin + stop.size();
    if (stop_end > last_end || stop_end > best_end ||
        (stop_end == best_end && stop.size() <= expected.stop_string->size()))
      continue;
    best_end = stop_end;
    expected.stop_string = stop;
  }
  if (!expected.stop_string) return expected;
  expected.stop_end = best_end;
  const bool include = request.stop().include_stop_string();
  expected.text.resize(best_end - (include ? 0 : expected.stop_string->size()));
  return expected;
}

}  // namespace lockstep::testing
