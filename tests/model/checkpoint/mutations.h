// Seeded damage to a file's bytes: what a broken download, a bad disk or an attacker would hand
// over.
#pragma once

#include <algorithm>
#include <random>
#include <string>

namespace lockstep::testing {

inline std::string Mutate(std::string bytes, std::mt19937_64& random) {
  const auto below = [&](size_t limit) { return limit == 0 ? 0 : random() % limit; };
  static constexpr const char* kTokens[] = {
      "{",   "}",    "[",   "]",  ",",  ":",   "\"",   "-1",  "0",
      "1e9", "null", "NaN", "[[", "{}", "\\u", "true", "1.5", "18446744073709551616"};
  for (size_t edits = 1 + below(4); edits > 0; --edits) {
    const size_t at = below(bytes.size());
    switch (below(6)) {
      case 0:
        bytes.resize(at);
        break;
      case 1:
        if (!bytes.empty()) bytes[at] = static_cast<char>(random());
        break;
      case 2:
        if (!bytes.empty()) bytes[at] ^= static_cast<char>(1 << below(8));
        break;
      case 3:
        bytes.erase(at, 1 + below(16));
        break;
      case 4:
        bytes.insert(at, kTokens[below(std::size(kTokens))]);
        break;
      case 5:
        bytes.insert(at, bytes.substr(below(bytes.size()), below(64)));
        break;
    }
  }
  return bytes;
}

}  // namespace lockstep::testing
