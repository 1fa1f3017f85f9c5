#include "model/grammar/schema_document.h"

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "model/json/strict_json.h"

namespace lockstep::grammar {
namespace {

// The way from `from` to `place`, backwards; false: it is not in there.
bool FindPlace(const SchemaJson& from, const SchemaJson& place, std::vector<std::string>& way) {
  if (&from == &place) return true;
  if (!from.is_structured()) return false;
  for (const auto& [name, child] : from.items()) {
    if (!FindPlace(child, place, way)) continue;
    way.push_back(absl::StrReplaceAll(name, {{"~", "~0"}, {"/", "~1"}}));
    return true;
  }
  return false;
}

bool IsHexDigit(char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); }

std::optional<std::string> WithoutPercents(absl::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      plain.push_back(text[i]);
      continue;
    }
    const absl::string_view digits = text.substr(i + 1, 2);
    uint32_t byte = 0;
    if (digits.size() != 2 || !IsHexDigit(digits[0]) || !IsHexDigit(digits[1]) ||
        !absl::SimpleHexAtoi(digits, &byte)) {
      return std::nullopt;
    }
    plain.push_back(static_cast<char>(byte));
    i += 2;
  }
  return plain;
}

const SchemaJson* Child(const SchemaJson& parent, const std::string& name) {
  if (parent.is_object()) {
    const auto found = parent.find(name);
    return found == parent.end() ? nullptr : &*found;
  }
  size_t index = 0;
  if (!parent.is_array() || !absl::SimpleAtoi(name, &index) || index >= parent.size()) {
    return nullptr;
  }
  return &parent[index];
}

}  // namespace

absl::Status SchemaWork::Take(int64_t amount) {
  left_ -= amount;
  if (left_ >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError("the schema is too large, or refers too often to large parts");
}

SchemaDocument::SchemaDocument(SchemaJson root) : root_(std::move(root)) {
  for (const SchemaJson& child : root_) FindForeign(child, /*is_foreign=*/false);
}

void SchemaDocument::FindForeign(const SchemaJson& place, bool is_foreign) {
  if (!place.is_structured()) return;
  if (place.is_object()) {
    const SchemaJson* id = FindKeyword(place, "$id");
    const bool has_id = id != nullptr && id->is_string();
    // One that begins with # is what $anchor is now.
    is_foreign = is_foreign || (has_id && !id->get_ref<const std::string&>().starts_with('#'));
    if (is_foreign && place.contains("$ref")) foreign_.insert(&place);
  }
  for (const SchemaJson& child : place) FindForeign(child, is_foreign);
}

absl::Status SchemaDocument::Error(const SchemaJson& place, absl::string_view what) const {
  std::vector<std::string> way;
  FindPlace(root_, place, way);
  std::string pointer = "#";
  for (auto name = way.rbegin(); name != way.rend(); ++name) absl::StrAppend(&pointer, "/", *name);
  return absl::InvalidArgumentError(absl::StrCat(Quoted(pointer), ": ", what));
}

absl::StatusOr<const SchemaJson*> SchemaDocument::Resolve(const SchemaJson& schema,
                                                          SchemaWork& work) const {
  const SchemaJson& reference = schema["$ref"];
  if (!reference.is_string()) return Error(schema, "$ref is not a string");
  const auto& text = reference.get_ref<const std::string&>();
  const auto error = [&](absl::string_view what) {
    return Error(schema, absl::StrCat("$ref ", Quoted(text), " ", what));
  };
  RETURN_IF_ERROR(work.Take(std::ssize(text) / 64));
  if (foreign_.contains(&schema)) return error("is not supported within a schema with an $id");
  const bool is_pointer = text == "#" || absl::string_view(text).substr(0, 2) == "#/";
  if (!is_pointer) return error("is not supported: it is no JSON pointer into this schema");
  const std::optional<std::string> plain = WithoutPercents(absl::string_view(text).substr(1));
  if (!plain.has_value()) return error("has a % without two hexadecimal digits behind it");
  const SchemaJson* place = &root_;
  const std::vector<std::string> names = absl::StrSplit(*plain, '/');
  for (size_t i = 1; i < names.size(); ++i) {
    RETURN_IF_ERROR(work.Take(std::ssize(*place) / 64));
    place = Child(*place, absl::StrReplaceAll(names[i], {{"~1", "/"}, {"~0", "~"}}));
    if (place == nullptr) return error("refers to nothing");
  }
  return place;
}

}  // namespace lockstep::grammar
