// What each kind of value is written as.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/grammar/json_numbers.h"
#include "model/grammar/regex.h"
#include "model/grammar/schema_compiler.h"
#include "model/grammar/schema_formats.h"
#include "model/grammar/text_pattern.h"
#include "model/tokenizer/utf8.h"

namespace lockstep::grammar {
namespace {

using Part = GrammarBuilder::Part;

// Longer texts are let be, though valid: each of these takes a state.
constexpr int64_t kMostCharacters = 16384;
constexpr int64_t kMostItems = 4096;

std::optional<int64_t> AtMost(std::optional<int64_t> max, int64_t most, int64_t min) {
  return max.has_value() ? std::optional(std::min(*max, std::max(min, most))) : std::nullopt;
}

// Whether values of enum and const are valid against what else is asked for. format is not: it is
// an annotation of what is written out already.
class ValueFilter {
 public:
  ValueFilter(const ValueRules& rules, std::optional<TextPattern> pattern, SchemaWork& work)
      : rules_(rules), pattern_(std::move(pattern)), work_(work) {}

  absl::StatusOr<bool> Keeps(const SchemaJson& value) const {
    if ((TypesOf(value) & ~rules_.types) != 0) return false;
    if (value.is_number()) return rules_.numbers.Contains(Decimal::Of(value));
    if (!value.is_string()) return true;
    return KeepsString(value.get_ref<const std::string&>());
  }

 private:
  absl::StatusOr<bool> KeepsString(const std::string& text) const {
    const StringRules& strings = rules_.strings;
    const int64_t length = NumCharacters(text);
    if (length < strings.min_length || length > strings.max_length.value_or(length)) return false;
    if (!pattern_.has_value()) return true;
    return pattern_->Matches(text, work_);
  }

  const ValueRules& rules_;
  const std::optional<TextPattern> pattern_;
  SchemaWork& work_;
};

absl::Status PatternError(const StringRules& rules, const absl::Status& status,
                          const SchemaDocument& document) {
  if (rules.pattern_schema == nullptr) return status;
  return document.Error(*rules.pattern_schema, absl::StrCat("pattern: ", status.message()));
}

}  // namespace

absl::StatusOr<Part> SchemaCompiler::CompileRules(const ValueRules& rules) {
  if (rules.values.has_value()) return CompileValues(rules);
  std::vector<Part> choices;
  if ((rules.types & kNullType) != 0) choices.push_back(builder_.Text("null"));
  if ((rules.types & kBooleanType) != 0) {
    choices.push_back(builder_.Text("true"));
    choices.push_back(builder_.Text("false"));
  }
  if ((rules.types & kFractionType) != 0) {
    choices.push_back(commons_.numbers.Number(rules.numbers));
  } else if ((rules.types & kIntegerType) != 0) {
    choices.push_back(commons_.numbers.Integer(rules.numbers));
  }
  if ((rules.types & kStringType) != 0) {
    ASSIGN_OR_RETURN(choices.emplace_back(), CompileString(rules.strings));
  }
  if ((rules.types & kArrayType) != 0) {
    ASSIGN_OR_RETURN(choices.emplace_back(), CompileArray(rules.arrays));
  }
  if ((rules.types & kObjectType) != 0) {
    ASSIGN_OR_RETURN(choices.emplace_back(), CompileObject(rules.objects));
  }
  return builder_.Choice(std::move(choices));
}

absl::StatusOr<Part> SchemaCompiler::CompileValues(const ValueRules& rules) {
  std::optional<TextPattern> pattern;
  if (rules.strings.pattern_schema != nullptr) {
    absl::StatusOr<TextPattern> parsed =
        TextPattern::Parse(rules.strings.pattern, /*is_anchored=*/false, work_);
    if (!parsed.ok()) return PatternError(rules.strings, parsed.status(), document_);
    pattern = *std::move(parsed);
  }
  const ValueFilter filter(rules, std::move(pattern), work_);
  std::vector<const SchemaJson*> kept;
  for (const SchemaJson* value : *rules.values) {
    ASSIGN_OR_RETURN(const bool is_kept, filter.Keeps(*value));
    if (!is_kept) continue;
    kept.push_back(value);
    const bool has_rules = value->is_array() ? rules.arrays.has_any : rules.objects.has_any;
    if (value->is_structured() && has_rules) {
      return document_.Error(*value,
                             "an array or object of enum or const is not supported beside "
                             "keywords of its type");
    }
  }
  return text_.OneOf(kept);
}

absl::StatusOr<Part> SchemaCompiler::CompileString(const StringRules& rules) {
  StringRules limited = rules;
  limited.max_length = AtMost(rules.max_length, kMostCharacters, rules.min_length);
  if (limited.max_length.value_or(rules.min_length) < rules.min_length) return builder_.Choice({});
  if (rules.pattern_schema == nullptr && rules.format.empty()) {
    return text_.StringOf(limited.min_length, limited.max_length);
  }
  const std::string key = absl::StrCat(limited.min_length, " ", limited.max_length.value_or(-1),
                                       " ", rules.format, " ", rules.pattern);
  const auto known = commons_.patterns.find(key);
  if (known != commons_.patterns.end()) return known->second;
  absl::StatusOr<Part> inside = CompilePattern(limited);
  if (!inside.ok()) return PatternError(rules, inside.status(), document_);
  return commons_.patterns[key] = builder_.MakeRule(text_.Quoted(*inside));
}

// A pattern says more than a format beside it.
absl::StatusOr<Part> SchemaCompiler::CompilePattern(const StringRules& rules) {
  const bool is_format = rules.pattern_schema == nullptr;
  const std::string pattern = is_format ? FormatPattern(rules.format) : rules.pattern;
  if (rules.min_length == 0 && !rules.max_length.has_value()) {
    RETURN_IF_ERROR(work_.Take(std::ssize(pattern)));
    const auto character = [this](GrammarBuilder&, std::span<const CodePointRange> ranges) {
      return text_.Character(ranges);
    };
    return AddRegex(pattern, builder_, {.anchored = is_format, .character = character});
  }
  ASSIGN_OR_RETURN(const TextPattern counted, TextPattern::Parse(pattern, is_format, work_));
  return counted.OfLength({rules.min_length, rules.max_length}, work_, text_, builder_);
}

absl::StatusOr<std::optional<Part>> SchemaCompiler::CompileOthers(
    const std::optional<SchemaSet>& schemas, bool are_default) {
  if (!schemas.has_value()) return are_default ? std::optional(text_.value()) : std::nullopt;
  const bool are_refused = std::any_of(schemas->begin(), schemas->end(),
                                       [](const SchemaJson* schema) { return *schema == false; });
  if (are_refused) return std::nullopt;
  return CompileAll(*schemas);
}

// Items behind those with schemas of their own are only written if no schema says anything of any
// item, or if there must be more.
absl::StatusOr<Part> SchemaCompiler::CompileArray(const ArrayRules& rules) {
  JsonText::Array array = {.min_items = rules.min_items,
                           .max_items = AtMost(rules.max_items, kMostItems, rules.min_items)};
  const bool has_first = !rules.first.empty();
  const bool lacks_items = rules.min_items > std::ssize(rules.first);
  ASSIGN_OR_RETURN(array.others, CompileOthers(rules.others, !has_first || lacks_items));
  if (has_first && !rules.others.has_value() && lacks_items) {
    array.max_items = std::min(rules.min_items, rules.max_items.value_or(rules.min_items));
  }
  for (const SchemaSet& item : rules.first) {
    ASSIGN_OR_RETURN(array.first.emplace_back(), CompileAll(item));
  }
  return text_.ArrayOf(array);
}

// Names that no schema has are only written if no schema has any, or one says what they may be.
absl::StatusOr<Part> SchemaCompiler::CompileObject(const ObjectRules& rules) {
  if (!rules.has_any) return text_.object();
  JsonText::Object object;
  ASSIGN_OR_RETURN(object.additional, CompileOthers(rules.additional, !rules.has_properties));
  RETURN_IF_ERROR(LimitProperties(rules, object));
  for (const ObjectRules::Property& property : rules.properties) {
    ASSIGN_OR_RETURN(const Part value, CompileAll(property.value));
    object.members.push_back(
        {.name = property.name, .value = value, .is_required = property.is_required});
  }
  return text_.ObjectOf(object);
}

absl::Status SchemaCompiler::LimitProperties(const ObjectRules& rules,
                                             JsonText::Object& object) const {
  const int64_t num_properties = std::ssize(rules.properties);
  const int64_t num_required =
      std::count_if(rules.properties.begin(), rules.properties.end(),
                    [](const ObjectRules::Property& property) { return property.is_required; });
  if (rules.min_properties > std::max<int64_t>(1, num_required)) {
    return document_.Error(*rules.counting_schema,
                           "minProperties is supported up to 1, or as many as are required");
  }
  object.is_never_empty = rules.min_properties > 0;
  if (!rules.max_properties.has_value()) return absl::OkStatus();
  if (*rules.max_properties < num_properties) {
    return document_.Error(*rules.counting_schema,
                           "maxProperties is supported from as many on as there are properties");
  }
  object.max_additional = std::min(*rules.max_properties - num_properties, kMostItems);
  return absl::OkStatus();
}

}  // namespace lockstep::grammar
