// UTF-8 at the tokenizer's edges: checking what comes in, repairing what goes out. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

enum class Utf8Kind { kCharacter, kInvalid, kIncomplete };

struct Utf8Unit {
  Utf8Kind kind;
  size_t num_bytes;     // of the character, of the maximal invalid subpart, or all that is left
  uint32_t code_point;  // of a character, else 0
};

// The first unit of non-empty `bytes`, as the Unicode Standard's table 3-7 (well-formed UTF-8) and
// its "maximal subpart" practice define it: what Rust's String::from_utf8_lossy does.
Utf8Unit NextUtf8Unit(std::string_view bytes);

// Offset of the first byte that is not part of a well-formed character; npos if all is well.
size_t FindInvalidUtf8(std::string_view text);

// Appends `bytes` to `out` with U+FFFD for each invalid subpart, up to an incomplete character at
// the end. Returns how many bytes were consumed; the rest, at most 3, may become a character yet.
size_t AppendUtf8Lossy(std::string_view bytes, std::string& out);

void AppendCodePoint(uint32_t code_point, std::string& out);

// Of text that need not be whole: continuation bytes belong to what came before.
int64_t NumCharacters(std::string_view text);

// Unicode's White_Space property (PropList.txt), which regex dialects approximate differently.
bool IsWhiteSpace(uint32_t code_point);

// Where the characters before `end` for which that is true begin, not before `low`; where those
// from `begin` on end. IsWhiteSpace and its like; the text is well-formed.
size_t SkipBackward(std::string_view text, size_t low, size_t end, bool (*goes)(uint32_t));
size_t SkipForward(std::string_view text, size_t begin, bool (*goes)(uint32_t));

std::string ReplaceAll(std::string_view text, std::string_view pattern,  // not empty
                       std::string_view replacement);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

}  // namespace lockstep
