#include "model/grammar/schema_exclusion.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace lockstep::grammar {
namespace {

constexpr size_t kMaxAlternatives = 256;
constexpr int kMaxInnerAlternatives = 4;  // in each other, whose types are looked at

// A value's types and, where it can only be some, those by EqualityKey, in order.
struct ValueTraits {
  TypeSet written_types = kAllTypes;
  TypeSet valid_types = kAllTypes;
  std::optional<std::vector<std::string>> values;
};

struct PropertyTraits {
  ValueTraits value;
  bool is_required = false;
  bool is_refused = false;
};

struct SchemaTraits {
  ValueTraits value;
  absl::flat_hash_map<std::string, PropertyTraits> properties;
  bool refuses_others = false;
};

bool HasNothingInCommon(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  for (auto x = a.begin(), y = b.begin(); x != a.end() && y != b.end();) {
    if (*x == *y) return false;
    ++(*x < *y ? x : y);
  }
  return true;
}

bool ValuesExclude(const ValueTraits& a, const ValueTraits& b) {
  if ((a.valid_types & b.valid_types) == 0) return true;
  return a.values.has_value() && b.values.has_value() && HasNothingInCommon(*a.values, *b.values);
}

bool Refuses(const SchemaTraits& traits, const std::string& name) {
  const auto found = traits.properties.find(name);
  return found == traits.properties.end() ? traits.refuses_others : found->second.is_refused;
}

// Of objects: a requires a property for which b wants another value, or none.
bool PropertiesExclude(const SchemaTraits& a, const SchemaTraits& b) {
  return std::any_of(a.properties.begin(), a.properties.end(), [&](const auto& entry) {
    const auto& [name, property] = entry;
    if (!property.is_required) return false;
    if (Refuses(b, name)) return true;
    const auto other = b.properties.find(name);
    return other != b.properties.end() && ValuesExclude(property.value, other->second.value);
  });
}

bool Exclude(const SchemaTraits& a, const SchemaTraits& b) {
  if (ValuesExclude(a.value, b.value)) return true;
  // What is written for one and may be valid for the other.
  const TypeSet common =
      (a.value.written_types & b.value.valid_types) | (b.value.written_types & a.value.valid_types);
  return (common & ~kObjectType) == 0 && (PropertiesExclude(a, b) || PropertiesExclude(b, a));
}

class TraitsReader {
 public:
  TraitsReader(const SchemaDocument& document, SchemaWork& work)
      : document_(document), work_(work) {}

  absl::StatusOr<SchemaTraits> Read(const SchemaParts& parts) {
    ASSIGN_OR_RETURN(const ValueRules rules, ReadRules(parts.rules, document_, work_));
    SchemaTraits traits;
    ASSIGN_OR_RETURN(traits.value, ValueOf(rules, parts, kMaxInnerAlternatives));
    const std::optional<SchemaSet>& additional = rules.objects.additional;
    traits.refuses_others = additional.has_value() && IsRefused(*additional);
    for (const ObjectRules::Property& property : rules.objects.properties) {
      PropertyTraits& known = traits.properties[property.name];
      known.is_required = property.is_required;
      known.is_refused = IsRefused(property.value);
      ASSIGN_OR_RETURN(known.value, PropertyValue(property.value));
    }
    return traits;
  }

 private:
  static bool IsRefused(const SchemaSet& schemas) {
    return std::any_of(schemas.begin(), schemas.end(),
                       [](const SchemaJson* schema) { return *schema == false; });
  }

  absl::StatusOr<ValueTraits> PropertyValue(const SchemaSet& schemas) {
    SchemaParts parts;
    for (const SchemaJson* schema : schemas) {
      RETURN_IF_ERROR(ExpandSchema(*schema, document_, work_, parts));
    }
    ASSIGN_OR_RETURN(const ValueRules rules, ReadRules(parts.rules, document_, work_));
    return ValueOf(rules, parts, kMaxInnerAlternatives);
  }

  absl::StatusOr<ValueTraits> ValueOf(const ValueRules& rules, const SchemaParts& parts,
                                      int levels_left) {
    ValueTraits traits = {
        .written_types = rules.types, .valid_types = rules.valid_types, .values = std::nullopt};
    if (rules.values.has_value()) {
      TypeSet types = 0;
      traits.values.emplace();
      for (const SchemaJson* value : *rules.values) {
        types |= TypesOf(*value);
        traits.values->push_back(EqualityKey(*value));
      }
      std::sort(traits.values->begin(), traits.values->end());
      traits.valid_types &= types;
    }
    for (const Alternatives& alternatives : parts.alternatives) {
      ASSIGN_OR_RETURN(const TypeSet types, TypesOfAny(alternatives, parts, levels_left));
      traits.valid_types &= types;
    }
    // What types inner alternatives imply is not looked at.
    if (!parts.alternatives.empty()) traits.written_types = kAllTypes;
    traits.written_types &= traits.valid_types;
    return traits;
  }

  absl::StatusOr<TypeSet> TypesOfAny(const Alternatives& alternatives, const SchemaParts& parts,
                                     int levels_left) {
    if (levels_left == 0) return kAllTypes;
    TypeSet types = 0;
    for (const SchemaJson& each : alternatives.list()) {
      SchemaParts inner;
      inner.chosen = parts.chosen;
      inner.chosen.insert(alternatives.schema);
      RETURN_IF_ERROR(ExpandSchema(each, document_, work_, inner));
      ASSIGN_OR_RETURN(const ValueRules rules, ReadRules(inner.rules, document_, work_));
      ASSIGN_OR_RETURN(const ValueTraits traits, ValueOf(rules, inner, levels_left - 1));
      types |= traits.valid_types;
    }
    return types;
  }

  const SchemaDocument& document_;
  SchemaWork& work_;
};

}  // namespace

absl::Status CheckExclusive(const SchemaJson& schema, std::span<const SchemaParts> alternatives,
                            const SchemaDocument& document, SchemaWork& work) {
  if (alternatives.size() == 1) return absl::OkStatus();
  if (alternatives.size() > kMaxAlternatives) {
    return document.Error(
        schema, absl::StrCat("oneOf with more than ", kMaxAlternatives, " is not supported"));
  }
  std::vector<SchemaTraits> traits;
  for (const SchemaParts& parts : alternatives) {
    ASSIGN_OR_RETURN(traits.emplace_back(), TraitsReader(document, work).Read(parts));
  }
  for (size_t i = 0; i < traits.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      RETURN_IF_ERROR(work.Take(1 + std::ssize(traits[i].properties) / 16));
      if (Exclude(traits[i], traits[j])) continue;
      return document.Error(
          schema, absl::StrCat("oneOf is supported only where its schemas exclude each other by "
                               "type or by a required property's value, which ",
                               j, " and ", i, " do not"));
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep::grammar
