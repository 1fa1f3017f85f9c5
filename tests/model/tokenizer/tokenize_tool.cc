// Encodes JSON lines {"text": ...} from standard input with DIRECTORY/tokenizer.json and prints one
// JSON array of ids per line, so that a script can compare them with another implementation.
//   tokenize_tool DIRECTORY [--special] [--parse-special] [--decode]
// --decode: lines are {"ids": [...]}, the output is a JSON string; special tokens are left out.
#include <cstdio>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace {

using Json = nlohmann::json;

Json Answer(const lockstep::Tokenizer& tokenizer, const Json& line,
            const std::set<std::string>& flags) {
  if (flags.contains("--decode")) {
    const auto ids = line["ids"].get<std::vector<int32_t>>();
    const auto text = tokenizer.Decode(ids, flags.contains("--special"));
    return text.ok() ? Json(*text) : Json{{"error", text.status().ToString()}};
  }
  const auto ids = tokenizer.Encode(line["text"].get_ref<const std::string&>(),
                                    {.add_special_tokens = flags.contains("--special"),
                                     .parse_special_tokens = flags.contains("--parse-special")});
  return ids.ok() ? Json(*ids) : Json{{"error", ids.status().ToString()}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr,
                 "usage: tokenize_tool DIRECTORY [--special] [--parse-special] [--decode]\n");
    return 2;
  }
  const auto tokenizer = lockstep::Tokenizer::Load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().ToString().c_str());
    return 1;
  }
  const std::set<std::string> flags(argv + 2, argv + argc);
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << Answer(**tokenizer, Json::parse(line), flags).dump() << '\n';
  }
  return 0;
}
