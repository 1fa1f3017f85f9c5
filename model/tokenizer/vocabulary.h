// Token content <-> id: the model's vocabulary and the added tokens together. Immutable.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "model/tokenizer/tokenizer_spec.h"

namespace lockstep {

class Vocabulary {
 public:
  // Takes spec.model.vocab's strings. INVALID_ARGUMENT if an id or a content occurs twice; an added
  // token may repeat an entry of the model exactly.
  static absl::StatusOr<Vocabulary> Make(TokenizerSpec& spec);
  // Moving keeps the tokens' storage, which the map's keys point into.
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  int32_t size() const { return static_cast<int32_t>(content_.size()); }  // largest id + 1
  bool IsValid(int32_t id) const { return id >= 0 && id < size() && kind_[id] != Kind::kNone; }
  bool IsSpecial(int32_t id) const { return IsValid(id) && kind_[id] == Kind::kSpecial; }
  const std::string& Content(int32_t id) const { return content_[id]; }  // id < size()

  std::optional<int32_t> ModelId(std::string_view content) const { return Find(model_, content); }
  std::optional<int32_t> AnyId(std::string_view content) const {
    const auto id = Find(added_, content);
    return id.has_value() ? id : ModelId(content);
  }

 private:
  using Ids = absl::flat_hash_map<std::string_view, int32_t>;
  enum class Kind : uint8_t { kNone, kModel, kAdded, kSpecial };

  Vocabulary() = default;
  absl::Status AddModelTokens(std::vector<std::pair<std::string, int32_t>>& vocab);
  absl::Status AddAddedTokens(const std::vector<AddedTokenSpec>& tokens);
  static std::optional<int32_t> Find(const Ids& ids, std::string_view content) {
    const auto entry = ids.find(content);
    return entry == ids.end() ? std::nullopt : std::optional<int32_t>(entry->second);
  }

  std::vector<std::string> content_;  // [size], empty where kind_ is kNone
  std::vector<Kind> kind_;            // [size]
  Ids model_;                         // keys view into content_
  Ids added_;
};

}  // namespace lockstep
