// The few bytes of a safetensors file, for tests that write checkpoints
// by hand.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/temp_directory.h"

namespace lockstep::testing {

inline std::string LengthPrefix(uint64_t length) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i) & 0xff);
  return bytes;
}

inline std::string SafetensorsBytes(std::string_view header, std::string_view data) {
  return LengthPrefix(header.size()) + std::string(header) + std::string(data);
}

inline std::string FloatBytes(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

}  // namespace lockstep::testing
