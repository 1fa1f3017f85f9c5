// Strings of the formats that are more than annotations here.
//
// Pure, any thread.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::grammar {

// A regular expression of texts that are of that format, from end to end: the common ones of
// email, all but leap seconds of the others. Empty: the format lets any text pass, as the
// specification allows.
std::string FormatPattern(std::string_view format);

}  // namespace lockstep::grammar
