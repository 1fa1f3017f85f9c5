// What a value must be to be valid against some schemas at once, as their keywords say.
//
// $ref, allOf, anyOf and oneOf are not read here: who expands them says which schemas there are.
// Each is read by itself where that makes a difference, as additionalProperties does, which is
// about those that the same schema does not name. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/grammar/json_numbers.h"
#include "model/grammar/schema_document.h"

namespace lockstep::grammar {

// Numbers are of two types: those that are integers, and all others.
using TypeSet = uint32_t;
inline constexpr TypeSet kNullType = 1;
inline constexpr TypeSet kBooleanType = 2;
inline constexpr TypeSet kIntegerType = 4;
inline constexpr TypeSet kFractionType = 8;
inline constexpr TypeSet kStringType = 16;
inline constexpr TypeSet kArrayType = 32;
inline constexpr TypeSet kObjectType = 64;
inline constexpr TypeSet kNumberTypes = kIntegerType | kFractionType;
inline constexpr TypeSet kAllTypes = 127;

// Those that a text of the value may be of: 1.0 is an integer to some.
TypeSet TypesOf(const SchemaJson& value);

struct StringRules {
  int64_t min_length = 0;  // in characters
  std::optional<int64_t> max_length;
  const SchemaJson* pattern_schema = nullptr;  // which has the pattern
  std::string pattern;
  std::string format;  // of those that FormatPattern knows, or none
};

struct ArrayRules {
  bool has_any = false;
  std::vector<SchemaSet> first;     // of the items in front
  std::optional<SchemaSet> others;  // of those behind them; nullopt: no schema says
  int64_t min_items = 0;
  std::optional<int64_t> max_items;
};

struct ObjectRules {
  struct Property {
    std::string name;
    SchemaSet value;
    bool is_required = false;
  };
  bool has_any = false;
  bool has_properties = false;          // a schema names some
  std::vector<Property> properties;     // in the schemas' order, then those that are only required
  std::optional<SchemaSet> additional;  // of any other name; nullopt: no schema says
  int64_t min_properties = 0;
  std::optional<int64_t> max_properties;
  const SchemaJson* counting_schema = nullptr;  // which has one of these two

  std::vector<std::string> required;                     // while schemas are read
  absl::flat_hash_map<std::string, size_t> property_at;  // of each name
};

struct ValueRules {
  TypeSet types = kAllTypes;                             // that are written
  TypeSet valid_types = kAllTypes;                       // values of other types are not valid
  std::optional<std::vector<const SchemaJson*>> values;  // it is one of these; by enum and const
  NumberRange numbers;
  StringRules strings;
  ArrayRules arrays;
  ObjectRules objects;
};

// Without annotations, which say nothing of the value.
bool HasOwnRules(const SchemaJson& schema);

// Where none of the schemas has a type, the types are those that the other keywords are about,
// although those let values of all other types pass. INVALID_ARGUMENT: malformed or not supported.
absl::StatusOr<ValueRules> ReadRules(const SchemaSet& schemas, const SchemaDocument& document,
                                     SchemaWork& work);

// Whether values are the same in JSON Schema's sense: 1 is 1.0, and names have no order.
std::string EqualityKey(const SchemaJson& value);

}  // namespace lockstep::grammar
