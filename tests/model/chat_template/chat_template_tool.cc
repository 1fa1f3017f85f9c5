// Renders JSON lines {"template": ..., "variables": {...}, "markup": {...}, "now": seconds} from
// standard input and prints {"pieces": [{"text": ..., "is_markup": ...}]} or {"error": ...} for
// each, so that a script can compare them with another implementation.
#include <iostream>
#include <string>

#include "model/chat_template/chat_template.h"
#include "nlohmann/json.hpp"

namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<std::vector<lockstep::TextPiece>> Render(const Json& line) {
  const auto parsed = lockstep::ChatTemplate::Parse(line["template"].get<std::string>());
  if (!parsed.ok()) return parsed.status();
  lockstep::ChatVariables variables;
  variables.input = line["variables"];
  for (const auto& [name, text] : line["markup"].items()) {
    variables.markup.emplace_back(name, text.get<std::string>());
  }
  if (line.contains("now")) variables.now = absl::FromUnixSeconds(line["now"].get<int64_t>());
  variables.zone = absl::UTCTimeZone();
  return parsed->Render(variables);
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto pieces = Render(Json::parse(line));
    Json answer;
    if (pieces.ok()) {
      answer["pieces"] = Json::array();
      for (const lockstep::TextPiece& piece : *pieces) {
        answer["pieces"].push_back({{"text", piece.text}, {"is_markup", piece.is_markup}});
      }
    } else {
      answer["error"] = pieces.status().ToString();
    }
    std::cout << answer.dump() << std::endl;
  }
  return 0;
}
