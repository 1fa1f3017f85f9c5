#include "model/grammar/schema_keywords.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/grammar/json_text.h"
#include "model/grammar/schema_formats.h"
#include "model/json/strict_json.h"

namespace lockstep::grammar {
namespace {

// Counts beyond are all the same: no text is so long.
constexpr double kLargestCount = 1e15;

void LowerTo(std::optional<int64_t> bound, std::optional<int64_t>& max) {
  if (bound.has_value()) max = std::min(*bound, max.value_or(*bound));
}

// minimum with exclusiveMinimum, which was a flag in draft 4 and is a bound of its own since.
absl::Status AddBound(const SchemaKeywords& keywords, const char* bound, const char* exclusive,
                      void (NumberRange::*add)(NumberBound), NumberRange& range) {
  ASSIGN_OR_RETURN(const SchemaJson* value, keywords.Number(bound));
  const SchemaJson* limit = keywords.Find(exclusive);
  const bool is_flag = limit != nullptr && limit->is_boolean();
  if (value != nullptr) {
    (range.*add)({.value = Decimal::Of(*value), .is_exclusive = is_flag && limit->get<bool>()});
  }
  if (limit == nullptr || is_flag) return absl::OkStatus();
  ASSIGN_OR_RETURN(limit, keywords.Number(exclusive));
  (range.*add)({.value = Decimal::Of(*limit), .is_exclusive = true});
  return absl::OkStatus();
}

// What is left for the items behind the first ones. items was prefixItems, if it was an array, and
// additionalItems was items, up to draft 2019-09.
struct ItemKeywords {
  const SchemaJson* first = nullptr;
  const SchemaJson* others = nullptr;
};

absl::StatusOr<ItemKeywords> ReadItems(const SchemaKeywords& keywords) {
  ItemKeywords items;
  const SchemaJson* all = keywords.Find("items");
  const bool is_old = all != nullptr && all->is_array();
  if (is_old && keywords.Find("prefixItems") != nullptr) {
    return keywords.Error("items is an array beside prefixItems");
  }
  ASSIGN_OR_RETURN(items.first, keywords.Array(is_old ? "items" : "prefixItems"));
  const char* others = is_old ? "additionalItems" : "items";
  items.others = keywords.Find(others);
  if (items.others == nullptr) {
    ASSIGN_OR_RETURN(items.others, keywords.Unevaluated("unevaluatedItems", others));
  }
  return items;
}

ObjectRules::Property& PropertyOf(const std::string& name, ObjectRules& rules) {
  const auto [found, is_new] = rules.property_at.try_emplace(name, rules.properties.size());
  if (is_new) {
    // Schemas before this one do not name it.
    rules.properties.push_back(
        {.name = name, .value = rules.additional.value_or(SchemaSet()), .is_required = false});
  }
  return rules.properties[found->second];
}

absl::Status AddRequired(const SchemaKeywords& keywords, SchemaWork& work, ObjectRules& rules) {
  ASSIGN_OR_RETURN(const SchemaJson* required, keywords.Array("required"));
  if (required == nullptr) return absl::OkStatus();
  for (const SchemaJson& name : *required) {
    if (!name.is_string()) return keywords.Error("required has what is no name");
    rules.required.push_back(name.get<std::string>());
    RETURN_IF_ERROR(work.Take(1 + std::ssize(rules.required.back())));
  }
  return absl::OkStatus();
}

absl::Status AddProperties(const SchemaJson& properties, const SchemaJson* additional,
                           SchemaWork& work, ObjectRules& rules) {
  const size_t num_before = rules.properties.size();
  absl::flat_hash_set<std::string> names;
  for (const auto& [name, value] : properties.items()) {
    RETURN_IF_ERROR(work.Take(1 + std::ssize(name)));
    PropertyOf(name, rules).value.push_back(&value);
    names.insert(name);
  }
  if (additional == nullptr) return absl::OkStatus();
  for (size_t i = 0; i < num_before; ++i) {
    ObjectRules::Property& property = rules.properties[i];
    if (!names.contains(property.name)) property.value.push_back(additional);
  }
  if (!rules.additional.has_value()) rules.additional.emplace();
  rules.additional->push_back(additional);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<const SchemaJson*> SchemaKeywords::OfKind(const char* keyword,
                                                         bool (SchemaJson::*is)() const,
                                                         const char* kind) const {
  const SchemaJson* value = Find(keyword);
  if (value == nullptr || (value->*is)()) return value;
  return Error(absl::StrCat(keyword, " is not ", kind, ": ", QuotedJson(*value)));
}

absl::StatusOr<const SchemaJson*> SchemaKeywords::Number(const char* keyword) const {
  return OfKind(keyword, &SchemaJson::is_number, "a number");
}
absl::StatusOr<const SchemaJson*> SchemaKeywords::Array(const char* keyword) const {
  return OfKind(keyword, &SchemaJson::is_array, "an array");
}
absl::StatusOr<const SchemaJson*> SchemaKeywords::Object(const char* keyword) const {
  return OfKind(keyword, &SchemaJson::is_object, "an object");
}

absl::StatusOr<std::optional<std::string>> SchemaKeywords::Text(const char* keyword) const {
  ASSIGN_OR_RETURN(const SchemaJson* value, OfKind(keyword, &SchemaJson::is_string, "a string"));
  if (value == nullptr) return std::nullopt;
  return value->get<std::string>();
}

absl::StatusOr<bool> SchemaKeywords::Flag(const char* keyword) const {
  ASSIGN_OR_RETURN(const SchemaJson* value,
                   OfKind(keyword, &SchemaJson::is_boolean, "true or false"));
  return value != nullptr && value->get<bool>();
}

absl::StatusOr<std::optional<int64_t>> SchemaKeywords::Count(const char* keyword) const {
  ASSIGN_OR_RETURN(const SchemaJson* value, Number(keyword));
  if (value == nullptr) return std::nullopt;
  const double count = std::min(value->get<double>(), kLargestCount);
  const auto whole = static_cast<int64_t>(std::max(count, -1.0));
  if (whole >= 0 && static_cast<double>(whole) == count) return whole;
  return Error(absl::StrCat(keyword, " is not a count: ", QuotedJson(*value)));
}

absl::Status SchemaKeywords::NotSupported(absl::string_view keyword) const {
  return Error(absl::StrCat(keyword, " is not supported"));
}

absl::StatusOr<const SchemaJson*> SchemaKeywords::Unevaluated(const char* keyword,
                                                              const char* instead) const {
  const SchemaJson* value = Find(keyword);
  if (value == nullptr || Find(instead) != nullptr) return nullptr;
  for (const char* inner : {"$ref", "allOf", "anyOf", "oneOf"}) {
    if (Find(inner) != nullptr) {
      return Error(absl::StrCat(keyword, " is not supported beside ", inner));
    }
  }
  return value;
}

absl::Status AddNumberRules(const SchemaKeywords& keywords, NumberRange& range) {
  RETURN_IF_ERROR(AddBound(keywords, "minimum", "exclusiveMinimum", &NumberRange::AddLower, range));
  return AddBound(keywords, "maximum", "exclusiveMaximum", &NumberRange::AddUpper, range);
}

absl::Status AddStringRules(const SchemaKeywords& keywords, StringRules& rules) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> min, keywords.Count("minLength"));
  ASSIGN_OR_RETURN(const std::optional<int64_t> max, keywords.Count("maxLength"));
  rules.min_length = std::max(rules.min_length, min.value_or(0));
  LowerTo(max, rules.max_length);
  ASSIGN_OR_RETURN(std::optional<std::string> pattern, keywords.Text("pattern"));
  if (pattern.has_value()) {
    if (rules.pattern_schema != nullptr && rules.pattern != *pattern) {
      return keywords.Error("a second pattern for one string is not supported");
    }
    rules.pattern_schema = &keywords.schema();
    rules.pattern = *std::move(pattern);
  }
  ASSIGN_OR_RETURN(std::optional<std::string> format, keywords.Text("format"));
  if (!format.has_value() || FormatPattern(*format).empty()) return absl::OkStatus();
  if (!rules.format.empty() && rules.format != *format) {
    return keywords.Error("a second format for one string is not supported");
  }
  rules.format = *std::move(format);
  return absl::OkStatus();
}

absl::Status AddArrayRules(const SchemaKeywords& keywords, ArrayRules& rules) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> min, keywords.Count("minItems"));
  ASSIGN_OR_RETURN(const std::optional<int64_t> max, keywords.Count("maxItems"));
  ASSIGN_OR_RETURN(const ItemKeywords items, ReadItems(keywords));
  rules.min_items = std::max(rules.min_items, min.value_or(0));
  LowerTo(max, rules.max_items);
  const bool has_items = items.first != nullptr || items.others != nullptr;
  rules.has_any = rules.has_any || has_items || min.has_value() || max.has_value();
  const size_t num_first = items.first == nullptr ? 0 : items.first->size();
  if (num_first > JsonText::kMaxFirstItems) {
    return keywords.Error(absl::StrCat("more than ", JsonText::kMaxFirstItems,
                                       " items with schemas of their own are not supported"));
  }
  while (rules.first.size() < num_first) {
    rules.first.push_back(rules.others.value_or(SchemaSet()));
  }
  for (size_t i = 0; i < rules.first.size(); ++i) {
    const SchemaJson* item = i < num_first ? &(*items.first)[i] : items.others;
    if (item != nullptr) rules.first[i].push_back(item);
  }
  if (items.others == nullptr) return absl::OkStatus();
  if (!rules.others.has_value()) rules.others.emplace();
  rules.others->push_back(items.others);
  return absl::OkStatus();
}

absl::Status AddObjectRules(const SchemaKeywords& keywords, SchemaWork& work, ObjectRules& rules) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> min, keywords.Count("minProperties"));
  ASSIGN_OR_RETURN(const std::optional<int64_t> max, keywords.Count("maxProperties"));
  rules.min_properties = std::max(rules.min_properties, min.value_or(0));
  LowerTo(max, rules.max_properties);
  if (min.has_value() || max.has_value()) rules.counting_schema = &keywords.schema();
  RETURN_IF_ERROR(AddRequired(keywords, work, rules));
  ASSIGN_OR_RETURN(const SchemaJson* properties, keywords.Object("properties"));
  const SchemaJson* additional = keywords.Find("additionalProperties");
  if (additional == nullptr) {
    ASSIGN_OR_RETURN(additional,
                     keywords.Unevaluated("unevaluatedProperties", "additionalProperties"));
  }
  rules.has_properties = rules.has_properties || properties != nullptr;
  rules.has_any = rules.has_any || rules.has_properties || additional != nullptr ||
                  rules.counting_schema != nullptr || !rules.required.empty();
  const SchemaJson none = SchemaJson::object();
  return AddProperties(properties == nullptr ? none : *properties, additional, work, rules);
}

void FinishObjectRules(ObjectRules& rules) {
  for (const std::string& name : rules.required) PropertyOf(name, rules).is_required = true;
}

}  // namespace lockstep::grammar
