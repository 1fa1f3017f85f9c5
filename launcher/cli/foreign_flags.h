// What flags of other servers are called here, for the error that refuses them.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace CLI {
class App;
}

namespace lockstep {

// "; --port is --http-listen HOST:PORT here" for the first such flag among the words of an error,
// if the command has what it is called here; else empty.
std::string ForeignFlagHint(const CLI::App& command, absl::string_view error);

}  // namespace lockstep
