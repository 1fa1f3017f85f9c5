#include "model/tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "model/tokenizer/utf8.h"

namespace lockstep {
namespace {

constexpr uint32_t kNumCharacters = 0x100 + 68;

struct Mapping {
  std::array<uint16_t, 256> character_of{};
  std::array<int16_t, kNumCharacters> byte_of{};
};

constexpr bool StandsForItself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr Mapping MakeMapping() {
  Mapping mapping;
  for (int16_t& byte : mapping.byte_of) byte = -1;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const int character = StandsForItself(byte) ? byte : next++;
    mapping.character_of[byte] = static_cast<uint16_t>(character);
    mapping.byte_of[character] = static_cast<int16_t>(byte);
  }
  return mapping;
}

constexpr Mapping kMapping = MakeMapping();

}  // namespace

void AppendByteLevel(std::string_view bytes, std::string& out) {
  for (const char byte : bytes) {
    const uint16_t character = kMapping.character_of[static_cast<uint8_t>(byte)];
    if (character < 0x80) {
      out += static_cast<char>(character);
    } else {  // all are below U+0800
      out += static_cast<char>(0xC0 | (character >> 6));
      out += static_cast<char>(0x80 | (character & 0x3F));
    }
  }
}

std::optional<std::string> BytesOfByteLevel(std::string_view characters) {
  std::string bytes;
  while (!characters.empty()) {
    const Utf8Unit unit = NextUtf8Unit(characters);
    if (unit.kind != Utf8Kind::kCharacter || unit.code_point >= kNumCharacters) return std::nullopt;
    const int16_t byte = kMapping.byte_of[unit.code_point];
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    characters.remove_prefix(unit.num_bytes);
  }
  return bytes;
}

}  // namespace lockstep
