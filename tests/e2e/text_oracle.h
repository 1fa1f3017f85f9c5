// The text that an output must have, from its tokens, the slow and plain way: all bytes at once,
// every stop string looked for in all of the text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/e2e/server_facts.h"

namespace lockstep::testing {

struct ExpectedText {
  std::string text;
  std::optional<std::string> stop_string;  // that ended it
  size_t stop_end = 0;                     // where in the text without an end that one ends
  size_t num_certain_before_last = 0;      // bytes that were certain before the last token
};

// How an output came to its last token: by itself, with a token that stops it, or it was cut there,
// so that half a character at its end is shown, but is no stop string.
enum class TextEnd { kOpen, kStopToken, kCut };

ExpectedText TextOf(const ServerFacts& facts, const v1::GenerateRequest& request,
                    const std::vector<int32_t>& prompt, const std::vector<int32_t>& token_ids,
                    TextEnd end);

// U+FFFD for each maximal part of what is no UTF-8 (Unicode 14, table 3-7). If asked, without a
// character at the end that more bytes could complete.
std::string Repaired(std::string_view bytes, bool drop_incomplete);

}  // namespace lockstep::testing
