// Which web pages' scripts may ask this server and read what it answers: browsers let none that was
// loaded from elsewhere, unless the answer names where. Source: Fetch Standard, "CORS protocol".
// Immutable; any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace lockstep {

class WebOrigins {
 public:
  // permitted: "https://chat.example.com", as Origin headers have it, in any case; "*": all.
  explicit WebOrigins(std::vector<std::string> permitted = {});

  // origin: a request's Origin; empty = it has none. What Access-Control-Allow-Origin says in the
  // answer; empty: nothing.
  std::string Permitted(absl::string_view origin) const;

 private:
  std::vector<std::string> permitted_;
};

}  // namespace lockstep
