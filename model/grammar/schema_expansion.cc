#include "model/grammar/schema_expansion.h"

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace lockstep::grammar {
namespace {

// Of $refs and allOfs in each other.
constexpr size_t kMaxOpenSchemas = 128;

class SchemaExpander {
 public:
  SchemaExpander(const SchemaDocument& document, SchemaWork& work, SchemaParts& parts)
      : document_(document), work_(work), parts_(parts) {}

  absl::Status Expand(const SchemaJson& schema) {
    RETURN_IF_ERROR(work_.Take(1 + std::ssize(schema)));
    if (!schema.is_object() && !schema.is_boolean()) {
      return document_.Error(schema, "a schema is an object, true or false");
    }
    const bool is_open = std::find(open_.begin(), open_.end(), &schema) != open_.end();
    if (is_open || parts_.chosen.contains(&schema)) {
      return document_.Error(schema, "it refers to itself without any text between");
    }
    if (!parts_.expanded.insert(&schema).second) return absl::OkStatus();
    if (open_.size() == kMaxOpenSchemas) {
      return document_.Error(
          schema, absl::StrCat("it is referred to through more than ", kMaxOpenSchemas, " others"));
    }
    open_.push_back(&schema);
    const absl::Cleanup close = [this] { open_.pop_back(); };
    return Add(schema);
  }

 private:
  // What a schema refers to comes first: properties of a base before its own.
  absl::Status Add(const SchemaJson& schema) {
    if (schema.is_object()) {
      RETURN_IF_ERROR(AddReferred(schema));
      for (const bool is_one_of : {false, true}) {
        const SchemaJson* list = FindKeyword(schema, is_one_of ? "oneOf" : "anyOf");
        if (list == nullptr) continue;
        RETURN_IF_ERROR(CheckList(schema, *list, is_one_of ? "oneOf" : "anyOf"));
        AddNew(Alternatives{.schema = &schema, .is_one_of = is_one_of}, parts_.alternatives);
      }
    }
    RETURN_IF_ERROR(work_.Take(parts_.size() / 64));
    if (HasOwnRules(schema)) AddNew(&schema, parts_.rules);
    return absl::OkStatus();
  }

  template <typename Entry>
  static void AddNew(Entry entry, std::vector<Entry>& list) {
    if (std::find(list.begin(), list.end(), entry) == list.end()) list.push_back(entry);
  }

  absl::Status AddReferred(const SchemaJson& schema) {
    if (schema.contains("$ref")) {
      parts_.has_reference = true;
      ASSIGN_OR_RETURN(const SchemaJson* target, document_.Resolve(schema, work_));
      RETURN_IF_ERROR(Expand(*target));
    }
    const SchemaJson* all = FindKeyword(schema, "allOf");
    if (all == nullptr) return absl::OkStatus();
    RETURN_IF_ERROR(CheckList(schema, *all, "allOf"));
    for (const SchemaJson& each : *all) RETURN_IF_ERROR(Expand(each));
    return absl::OkStatus();
  }

  absl::Status CheckList(const SchemaJson& schema, const SchemaJson& list, const char* keyword) {
    if (list.is_array() && !list.empty()) return absl::OkStatus();
    return document_.Error(schema, absl::StrCat(keyword, " is not a list of schemas"));
  }

  const SchemaDocument& document_;
  SchemaWork& work_;
  SchemaParts& parts_;
  std::vector<const SchemaJson*> open_;
};

}  // namespace

SchemaParts SchemaParts::Without(const Alternatives& chosen_ones) const {
  SchemaParts others = {.rules = rules,
                        .alternatives = alternatives,
                        .has_reference = false,
                        .expanded = {},  // all is gone through again, in search of what is chosen
                        .chosen = chosen};
  std::erase(others.alternatives, chosen_ones);
  others.chosen.insert(chosen_ones.schema);
  return others;
}

absl::Status ExpandSchema(const SchemaJson& schema, const SchemaDocument& document,
                          SchemaWork& work, SchemaParts& parts) {
  return SchemaExpander(document, work, parts).Expand(schema);
}

}  // namespace lockstep::grammar
