// A JSON Schema as it was given: its places by name, what its $refs refer to, and how much work is
// done for it.
//
// Not copied nor moved once others point into it. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace lockstep::grammar {

// Names are in the order of the text.
using SchemaJson = nlohmann::ordered_json;
// A value must be valid against all of these. None: any value is.
using SchemaSet = std::vector<const SchemaJson*>;

inline const SchemaJson* FindKeyword(const SchemaJson& schema, const char* keyword) {
  const auto found = schema.find(keyword);
  return found == schema.end() ? nullptr : &*found;
}

// What remains to be done for a schema: it may refer to the same place from many others.
class SchemaWork {
 public:
  absl::Status Take(int64_t amount);

 private:
  int64_t left_ = 1 << 18;
};

class SchemaDocument {
 public:
  explicit SchemaDocument(SchemaJson root);
  SchemaDocument(const SchemaDocument&) = delete;
  SchemaDocument& operator=(const SchemaDocument&) = delete;

  const SchemaJson& root() const { return root_; }

  // INVALID_ARGUMENT: "#/properties/age": what. The place is in this document.
  absl::Status Error(const SchemaJson& place, absl::string_view what) const;

  // What the $ref of that schema refers to: a JSON pointer (RFC 6901) behind a #.
  absl::StatusOr<const SchemaJson*> Resolve(const SchemaJson& schema, SchemaWork& work) const;

 private:
  void FindForeign(const SchemaJson& place, bool is_foreign);

  const SchemaJson root_;
  absl::flat_hash_set<const SchemaJson*> foreign_;  // their $refs are relative to another $id
};

}  // namespace lockstep::grammar
