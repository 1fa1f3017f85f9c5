// Unicode's normalization form C (UAX #15, https://www.unicode.org/reports/tr15) by the tables of
// Unicode 9, which Hugging Face's tokenizers have. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// `text` is well-formed UTF-8, of which the result takes at most three times the bytes; in a time
// that grows with the text alone, whatever marks are heaped on a letter.
std::string ToNfc(std::string_view text);

}  // namespace lockstep
