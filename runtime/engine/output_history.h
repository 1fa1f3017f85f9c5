// What outputs said that have ended, for those to come to quote (SuffixDecoding: Oliaro et al.,
// 2024): programs ask alike, and get answers of one form. Tenants (cache salts) do not see each
// other's. Bounded in tokens and tenants. Pure.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace lockstep::engine {

// Tokens with places that stay theirs while others are forgotten.
struct HistoryView {
  std::span<const int32_t> tokens = {};
  uint64_t first_place = 0;  // of tokens.front()
};

class OutputHistory {
 public:
  static constexpr size_t kMaxTokens = size_t{1} << 15;        // of a tenant, up to twice as many
  static constexpr size_t kMaxOutputTokens = size_t{1} << 12;  // the first ones of an output
  static constexpr size_t kMaxTenants = 64;                    // the last ones that had an output
  static constexpr int32_t kEndOfOutput = -1;                  // no token: nothing goes on over it

  void Add(const std::string& tenant, std::span<const int32_t> output);
  // Valid until the next Add.
  HistoryView Of(const std::string& tenant) const;

 private:
  struct Tenant {
    std::vector<int32_t> tokens;
    uint64_t first_place = 0;
    std::list<std::string>::iterator used;
  };
  std::list<std::string> by_use_;  // names, the one that had an output last first
  absl::flat_hash_map<std::string, Tenant> tenants_;
  uint64_t next_place_ = 0;  // places are not used again, whoever is forgotten
};

}  // namespace lockstep::engine
