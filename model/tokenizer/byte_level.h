// GPT-2's reversible mapping of bytes to printable characters, which byte-level BPE vocabularies
// are written in: 188 printable bytes stand for themselves, the other 68 for U+0100..U+0143.
// Source: bytes_to_unicode() of https://github.com/openai/gpt-2, src/encoder.py.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

void AppendByteLevel(std::string_view bytes, std::string& out);

// The bytes that `characters` (valid UTF-8) stands for; nullopt if one of them stands for none.
std::optional<std::string> BytesOfByteLevel(std::string_view characters);

}  // namespace lockstep
