#include "model/json/strict_json.h"

#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr size_t kMaxQuotedBytes = 120;

// Debian's absl has its own string_view, hence the copy.
std::string Escaped(std::string_view text) { return absl::Utf8SafeCHexEscape(std::string(text)); }

// Builds the document and refuses what the library's own builder would silently merge.
class DomBuilder : public nlohmann::json_sax<json> {
 public:
  explicit DomBuilder(int max_depth) : max_depth_(max_depth) {}

  bool null() override { return Add(json(nullptr)); }
  bool boolean(bool value) override { return Add(json(value)); }
  bool number_integer(number_integer_t value) override { return Add(json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return Add(json(value)); }
  bool number_float(number_float_t value, const string_t&) override { return Add(json(value)); }
  bool string(string_t& value) override { return Add(json(std::move(value))); }
  bool binary(binary_t&) override { return false; }  // not in JSON text
  bool start_object(std::size_t) override { return Open(json::object()); }
  bool start_array(std::size_t) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    if (open_.back()->contains(name)) {
      return Fail(absl::StrCat("the name ", Quoted(name), " occurs twice in one object"));
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
  json TakeDocument() { return std::move(document_); }

 private:
  bool Fail(std::string message) {
    status_ = absl::InvalidArgumentError(std::move(message));
    return false;
  }

  json* Place(json value) {
    if (open_.empty()) {
      document_ = std::move(value);
      return &document_;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    json& slot = (*open_.back())[key_];
    slot = std::move(value);
    return &slot;
  }

  bool Add(json value) {
    Place(std::move(value));
    return true;
  }

  bool Open(json container) {
    if (static_cast<int>(open_.size()) >= max_depth_) {
      return Fail(absl::StrCat("objects and arrays nest deeper than ", max_depth_));
    }
    open_.push_back(Place(std::move(container)));
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  const int max_depth_;
  json document_;
  std::vector<json*> open_;  // a parent is never resized while a child is open, so these stay valid
  std::string key_;
  absl::Status status_;
};

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

absl::Status SaxParseStrictJson(std::string_view text, nlohmann::json_sax<json>& handler) {
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
  DomBuilder builder(max_depth);
  RETURN_IF_ERROR(SaxParseStrictJson(text, builder));
  RETURN_IF_ERROR(builder.status());
  return builder.TakeDocument();
}

}  // namespace lockstep
