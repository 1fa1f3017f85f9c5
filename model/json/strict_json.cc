#include "model/json/strict_json.h"

#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr size_t kMaxQuotedBytes = 120;

// Debian's absl has its own string_view, hence the copy.
std::string Escaped(std::string_view text) {
  return absl::StrReplaceAll(absl::Utf8SafeCHexEscape(std::string(text)), {{"\\'", "'"}});
}

// Builds the document and refuses what the library's own builder would silently merge.
// Document: json, or ordered_json, which would look through all names of an object for one.
template <typename Document>
class DomBuilder : public nlohmann::json_sax<json> {
 public:
  explicit DomBuilder(int max_depth) : max_depth_(max_depth) {}

  bool null() override { return Add(Document(nullptr)); }
  bool boolean(bool value) override { return Add(Document(value)); }
  bool number_integer(number_integer_t value) override { return Add(Document(value)); }
  bool number_unsigned(number_unsigned_t value) override { return Add(Document(value)); }
  bool number_float(number_float_t value, const string_t&) override { return Add(Document(value)); }
  bool string(string_t& value) override { return Add(Document(std::move(value))); }
  bool binary(binary_t&) override { return false; }  // not in JSON text
  bool start_object(std::size_t) override { return Open(Document::object()); }
  bool start_array(std::size_t) override { return Open(Document::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    if (HasName(name)) {
      return Fail(absl::StrCat("the name ", Quoted(name), " occurs twice in one object"));
    }
    if (kIsOrdered && open_.back().value->size() >= kMaxOrderedNames) {
      return Fail(absl::StrCat("an object has more than ", kMaxOrderedNames, " names"));
    }
    key_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const json::exception& error) override {
    status_ = JsonSyntaxError(position, error.what());
    return false;
  }

  const absl::Status& status() const { return status_; }
  Document TakeDocument() { return std::move(document_); }

 private:
  static constexpr bool kIsOrdered = std::is_same_v<Document, nlohmann::ordered_json>;

  bool Fail(std::string message) {
    status_ = absl::InvalidArgumentError(std::move(message));
    return false;
  }

  // Of the innermost object, of which an ordered one remembers its names.
  bool HasName(const std::string& name) {
    if constexpr (kIsOrdered) {
      return !open_.back().names.insert(name).second;
    } else {
      return open_.back().value->contains(name);
    }
  }

  Document* Place(Document value) {
    if (open_.empty()) {
      document_ = std::move(value);
      return &document_;
    }
    Document& parent = *open_.back().value;
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    if constexpr (kIsOrdered) {
      auto& members = parent.template get_ref<typename Document::object_t&>();
      members.push_back({key_, std::move(value)});
      return &members.back().second;
    } else {
      Document& slot = parent[key_];
      slot = std::move(value);
      return &slot;
    }
  }

  bool Add(Document value) {
    Place(std::move(value));
    return true;
  }

  bool Open(Document container) {
    if (static_cast<int>(open_.size()) >= max_depth_) {
      return Fail(absl::StrCat("objects and arrays nest deeper than ", max_depth_));
    }
    open_.push_back({Place(std::move(container)), {}});
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  struct Container {
    Document* value = nullptr;
    absl::flat_hash_set<std::string> names;
  };

  const int max_depth_;
  Document document_;
  // A parent is never resized while a child is open, so these stay valid.
  std::vector<Container> open_;
  std::string key_;
  absl::Status status_;
};

// Passes one field of the outermost object on to another builder.
class FieldBuilder : public nlohmann::json_sax<json> {
 public:
  FieldBuilder(std::string_view field, int max_depth) : field_(field), builder_(max_depth) {}

  bool null() override {
    return Pass(0, [&] { return builder_.null(); });
  }
  bool boolean(bool value) override {
    return Pass(0, [&] { return builder_.boolean(value); });
  }
  bool number_integer(number_integer_t value) override {
    return Pass(0, [&] { return builder_.number_integer(value); });
  }
  bool number_unsigned(number_unsigned_t value) override {
    return Pass(0, [&] { return builder_.number_unsigned(value); });
  }
  bool number_float(number_float_t value, const string_t& text) override {
    return Pass(0, [&] { return builder_.number_float(value, text); });
  }
  bool string(string_t& value) override {
    return Pass(0, [&] { return builder_.string(value); });
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t size) override {
    return Pass(1, [&] { return builder_.start_object(size); });
  }
  bool start_array(std::size_t size) override {
    return Pass(1, [&] { return builder_.start_array(size); });
  }
  bool end_object() override {
    return Pass(-1, [&] { return builder_.end_object(); });
  }
  bool end_array() override {
    return Pass(-1, [&] { return builder_.end_array(); });
  }
  bool key(string_t& name) override {
    if (is_inside_) return builder_.key(name);
    if (depth_ == 1) is_inside_ = name == field_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string& token,
                   const json::exception& error) override {
    return builder_.parse_error(position, token, error);
  }

  const absl::Status& status() const { return builder_.status(); }
  nlohmann::ordered_json TakeField() { return builder_.TakeDocument(); }

 private:
  // A value, or the beginning or end of one.
  template <typename Event>
  bool Pass(int depth_change, const Event& event) {
    depth_ += depth_change;
    if (!is_inside_) return true;
    if (depth_ == 1) is_inside_ = false;  // the value is complete
    return event();
  }

  const std::string_view field_;
  DomBuilder<nlohmann::ordered_json> builder_;
  int depth_ = 0;
  bool is_inside_ = false;
};

template <typename Document>
absl::StatusOr<Document> ParseAs(std::string_view text, int max_depth) {
  DomBuilder<Document> builder(max_depth);
  RETURN_IF_ERROR(SaxParseStrictJson(text, builder));
  RETURN_IF_ERROR(builder.status());
  return builder.TakeDocument();
}

}  // namespace

std::string Quoted(std::string_view text) {
  const bool cut = text.size() > kMaxQuotedBytes;
  return absl::StrCat("\"", Escaped(text.substr(0, kMaxQuotedBytes)), "\"", cut ? "..." : "");
}

std::string QuotedJson(const json& value) {
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= kMaxQuotedBytes ? text
                                        : absl::StrCat(text.substr(0, kMaxQuotedBytes), "...");
}

absl::Status JsonSyntaxError(std::size_t position, std::string_view what) {
  // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error ..." -> the
  // last part.
  if (const size_t place = what.find("column "); place != std::string_view::npos) {
    if (const size_t colon = what.find(": ", place); colon != std::string_view::npos) {
      what.remove_prefix(colon + 2);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("not valid JSON at byte ", position, ": ",
                                                 Escaped(what.substr(0, kMaxQuotedBytes))));
}

bool IsLfsPointer(std::string_view text) {
  constexpr std::string_view kStart = "version https://git-lfs";
  return text.substr(0, kStart.size()) == kStart;
}

absl::Status SaxParseStrictJson(std::string_view text, nlohmann::json_sax<json>& handler) {
  if (IsLfsPointer(text)) return absl::InvalidArgumentError(kLfsPointer);
  // The library takes a NUL for the end of input and skips a byte order mark.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("not valid JSON at byte ", nul, ": a NUL byte"));
  }
  if (text.substr(0, 3) == "\xef\xbb\xbf") {
    return absl::InvalidArgumentError("not valid JSON at byte 0: a byte order mark");
  }
  json::sax_parse(text.begin(), text.end(), &handler);
  return absl::OkStatus();
}

absl::StatusOr<json> ParseStrictJson(std::string_view text, int max_depth) {
  return ParseAs<json>(text, max_depth);
}

absl::StatusOr<nlohmann::ordered_json> ParseStrictOrderedJson(std::string_view text,
                                                              int max_depth) {
  return ParseAs<nlohmann::ordered_json>(text, max_depth);
}

absl::StatusOr<nlohmann::ordered_json> ParseStrictOrderedField(std::string_view text,
                                                               std::string_view field,
                                                               int max_depth) {
  FieldBuilder builder(field, max_depth);
  RETURN_IF_ERROR(SaxParseStrictJson(text, builder));
  RETURN_IF_ERROR(builder.status());
  return builder.TakeField();
}

}  // namespace lockstep
