#include "model/grammar/schema_rules.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/grammar/json_text.h"
#include "model/grammar/schema_formats.h"
#include "model/grammar/schema_keywords.h"
#include "model/json/strict_json.h"

namespace lockstep::grammar {
namespace {

struct KeywordInfo {
  const char* name;
  TypeSet types;  // that it is about
  bool is_supported = true;
};

constexpr KeywordInfo kKeywords[] = {
    {"type", 0},
    {"nullable", 0},
    {"enum", 0},
    {"const", 0},
    {"minimum", kNumberTypes},
    {"maximum", kNumberTypes},
    {"exclusiveMinimum", kNumberTypes},
    {"exclusiveMaximum", kNumberTypes},
    {"multipleOf", kNumberTypes, false},
    {"minLength", kStringType},
    {"maxLength", kStringType},
    {"pattern", kStringType},
    {"format", kStringType},
    {"items", kArrayType},
    {"prefixItems", kArrayType},
    {"additionalItems", kArrayType},
    {"minItems", kArrayType},
    {"maxItems", kArrayType},
    {"unevaluatedItems", kArrayType},
    {"uniqueItems", kArrayType, false},
    {"contains", kArrayType, false},
    {"properties", kObjectType},
    {"required", kObjectType},
    {"additionalProperties", kObjectType},
    {"minProperties", kObjectType},
    {"maxProperties", kObjectType},
    {"unevaluatedProperties", kObjectType},
    {"patternProperties", kObjectType, false},
    {"propertyNames", kObjectType, false},
    {"dependencies", kObjectType, false},
    {"dependentRequired", kObjectType, false},
    {"dependentSchemas", kObjectType, false},
    {"not", kAllTypes, false},
    {"if", kAllTypes, false},
    {"$dynamicRef", kAllTypes, false},
    {"$recursiveRef", kAllTypes, false},
};

constexpr std::pair<std::string_view, TypeSet> kTypeNames[] = {
    {"null", kNullType},      {"boolean", kBooleanType}, {"integer", kIntegerType},
    {"number", kNumberTypes}, {"string", kStringType},   {"array", kArrayType},
    {"object", kObjectType},
};

// Keywords that are there, but ask for nothing.
bool AsksForNothing(const SchemaKeywords& keywords, std::string_view name,
                    const SchemaJson& value) {
  if (name == "if") return keywords.Find("then") == nullptr && keywords.Find("else") == nullptr;
  if (name == "uniqueItems") return value == false;
  if (name == "multipleOf") return value == 1;  // every integer is one, and no other is written
  if (name == "propertyNames") {                // names are strings
    static const SchemaJson kStrings = {{"type", "string"}};
    return value == true || value == SchemaJson::object() || value == kStrings;
  }
  const bool is_map = name == "patternProperties" || name.starts_with("depend");
  return is_map && value.is_object() && value.empty();
}

class RulesReader {
 public:
  RulesReader(const SchemaDocument& document, SchemaWork& work)
      : document_(document), work_(work) {}

  absl::Status Add(const SchemaJson& schema) {
    if (schema.is_boolean()) {
      if (!schema.get<bool>()) given_types_ = 0;
      return absl::OkStatus();
    }
    const SchemaKeywords keywords(schema, document_);
    RETURN_IF_ERROR(AddTypes(keywords));
    RETURN_IF_ERROR(AddEnum(keywords));
    RETURN_IF_ERROR(AddConst(keywords));
    RETURN_IF_ERROR(AddNumberRules(keywords, rules_.numbers));
    RETURN_IF_ERROR(AddStringRules(keywords, rules_.strings));
    RETURN_IF_ERROR(AddArrayRules(keywords, rules_.arrays));
    RETURN_IF_ERROR(AddObjectRules(keywords, work_, rules_.objects));
    NoteKeywords(keywords);
    return absl::OkStatus();
  }

  absl::StatusOr<ValueRules> Finish() {
    const bool has_types = given_types_.has_value() || rules_.values.has_value();
    const TypeSet implied = implied_types_ == 0 ? kAllTypes : implied_types_;
    rules_.valid_types = given_types_.value_or(kAllTypes);
    rules_.types = has_types ? rules_.valid_types : implied;
    if (are_integers_) rules_.types &= ~kFractionType;
    for (const Unsupported& use : unsupported_) {
      if ((use.types & rules_.types) == 0) continue;  // then it says nothing
      return document_.Error(*use.schema, absl::StrCat(use.keyword, " is not supported"));
    }
    FinishObjectRules(rules_.objects);
    return std::move(rules_);
  }

 private:
  struct Unsupported {
    const SchemaJson* schema;
    const char* keyword;
    TypeSet types;
  };

  absl::Status AddTypes(const SchemaKeywords& keywords) {
    const SchemaJson* type = keywords.Find("type");
    if (type == nullptr) return absl::OkStatus();
    if (!type->is_string() && !type->is_array()) return keywords.Error("type is no name or list");
    TypeSet types = 0;
    for (const SchemaJson& name : *type) {  // a string is a range of itself
      const auto known =
          std::find_if(std::begin(kTypeNames), std::end(kTypeNames),
                       [&](const auto& entry) { return name == SchemaJson(entry.first); });
      if (known == std::end(kTypeNames)) {
        return keywords.Error(absl::StrCat("there is no type ", QuotedJson(name)));
      }
      types |= known->second;
    }
    ASSIGN_OR_RETURN(const bool is_nullable, keywords.Flag("nullable"));
    if (is_nullable) types |= kNullType;
    given_types_ = given_types_.value_or(kAllTypes) & types;
    return absl::OkStatus();
  }

  absl::Status AddEnum(const SchemaKeywords& keywords) {
    ASSIGN_OR_RETURN(const SchemaJson* values, keywords.Array("enum"));
    if (values == nullptr) return absl::OkStatus();
    std::vector<const SchemaJson*> each;
    for (const SchemaJson& value : *values) each.push_back(&value);
    return KeepValues(std::move(each));
  }

  absl::Status AddConst(const SchemaKeywords& keywords) {
    const SchemaJson* value = keywords.Find("const");
    return value == nullptr ? absl::OkStatus() : KeepValues({value});
  }

  absl::Status KeepValues(std::vector<const SchemaJson*> values) {
    absl::flat_hash_map<std::string, const SchemaJson*> kept;
    for (const SchemaJson* value : values) {
      std::string key = EqualityKey(*value);
      RETURN_IF_ERROR(work_.Take(1 + std::ssize(key)));
      kept.try_emplace(std::move(key), value);
    }
    if (!rules_.values.has_value()) {
      rules_.values = std::move(values);
      return absl::OkStatus();
    }
    std::erase_if(*rules_.values,
                  [&](const SchemaJson* value) { return !kept.contains(EqualityKey(*value)); });
    return absl::OkStatus();
  }

  void NoteKeywords(const SchemaKeywords& keywords) {
    for (const KeywordInfo& info : kKeywords) {
      const SchemaJson* value = keywords.Find(info.name);
      if (value == nullptr) continue;
      const std::string_view name = info.name;
      if (name == "multipleOf" && *value == 1) are_integers_ = true;
      // What is no format to us says nothing, not even that it is of strings: int32.
      const bool is_unknown_format = name == "format" && rules_.strings.format.empty();
      if (!is_unknown_format && info.types != kAllTypes) implied_types_ |= info.types;
      if (info.is_supported || AsksForNothing(keywords, name, *value)) continue;
      unsupported_.push_back({&keywords.schema(), info.name, info.types});
    }
  }

  const SchemaDocument& document_;
  SchemaWork& work_;
  ValueRules rules_;
  std::optional<TypeSet> given_types_;
  TypeSet implied_types_ = 0;
  bool are_integers_ = false;
  std::vector<Unsupported> unsupported_;
};

}  // namespace

TypeSet TypesOf(const SchemaJson& value) {
  switch (value.type()) {
    case SchemaJson::value_t::null:
      return kNullType;
    case SchemaJson::value_t::boolean:
      return kBooleanType;
    case SchemaJson::value_t::string:
      return kStringType;
    case SchemaJson::value_t::array:
      return kArrayType;
    case SchemaJson::value_t::object:
      return kObjectType;
    case SchemaJson::value_t::number_float:
      return Decimal::Of(value).fraction.empty() ? kNumberTypes : kFractionType;
    default:
      return kIntegerType;
  }
}

bool HasOwnRules(const SchemaJson& schema) {
  if (schema.is_boolean()) return !schema.get<bool>();
  return std::any_of(std::begin(kKeywords), std::end(kKeywords), [&](const KeywordInfo& info) {
    return FindKeyword(schema, info.name) != nullptr;
  });
}

absl::StatusOr<ValueRules> ReadRules(const SchemaSet& schemas, const SchemaDocument& document,
                                     SchemaWork& work) {
  RulesReader reader(document, work);
  for (const SchemaJson* schema : schemas) {
    RETURN_IF_ERROR(work.Take(std::ssize(*schema)));
    RETURN_IF_ERROR(reader.Add(*schema));
  }
  return reader.Finish();
}

std::string EqualityKey(const SchemaJson& value) {
  if (value.is_number()) {
    const Decimal decimal = Decimal::Of(value);
    return absl::StrCat(decimal.is_negative ? "-" : "", decimal.whole, ".", decimal.fraction);
  }
  if (!value.is_structured()) return JsonText::WrittenPlainly(value);
  std::vector<std::string> keys;
  for (const auto& [name, entry] : value.items()) {
    const std::string key = EqualityKey(entry);
    keys.push_back(value.is_array() ? key : absl::StrCat(JsonText::WrittenPlainly(name), ":", key));
  }
  if (value.is_object()) std::sort(keys.begin(), keys.end());
  std::string all = value.is_array() ? "[" : "{";
  for (const std::string& key : keys) absl::StrAppend(&all, key, ",");
  return all;
}

}  // namespace lockstep::grammar
