#include "model/chat_template/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "model/tokenizer/utf8.h"

namespace lockstep::jinja {

const Value* Dict::Find(std::string_view key) const {
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const auto& entry) { return entry.first.text() == key; });
  return found == entries.end() ? nullptr : &found->second;
}

void Dict::Set(MarkedText key, Value value) {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const auto& entry) {
    return entry.first.text() == key.text();
  });
  if (found == entries.end()) {
    entries.emplace_back(std::move(key), std::move(value));
  } else {
    found->second = std::move(value);
  }
}

Value Value::Of(MarkedText text) {
  Value value(std::make_shared<MarkedText>(std::move(text)));
  value.weight_ += value.text()->size();
  return value;
}

Value Value::Of(List list, bool is_tuple) {
  Value value(std::make_shared<List>(std::move(list)));
  value.depth_ = 1;
  value.is_tuple_ = is_tuple;
  for (const Value& entry : *value.list()) value.Hold(entry);
  return value;
}

Value Value::Of(Dict dict) {
  Value value(std::make_shared<Dict>(std::move(dict)));
  value.depth_ = 1;
  value.holds_namespace_ = value.dict()->is_namespace;
  for (const auto& [key, entry] : value.dict()->entries) {
    value.weight_ += key.size();
    value.Hold(entry);
  }
  return value;
}

void Value::Hold(const Value& inner) {
  depth_ = std::max(depth_, inner.depth_ + 1);
  weight_ = std::min(weight_ + inner.weight_, kMaxWeight);
  holds_namespace_ = holds_namespace_ || inner.holds_namespace_;
}

Value Value::OfJson(const nlohmann::ordered_json& json) {
  if (json.is_null()) return OfNone();
  if (json.is_boolean()) return Of(json.get<bool>());
  if (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX) return Of(json.get<double>());
  if (json.is_number_integer()) return Of(json.get<int64_t>());
  if (json.is_number()) return Of(json.get<double>());
  if (json.is_string()) return Of(MarkedText(json.get<std::string>(), /*is_markup=*/false));
  if (json.is_array()) {
    List list;
    for (const auto& entry : json) list.push_back(OfJson(entry));
    return Of(std::move(list));
  }
  Dict dict;  // whose names are different ones already
  for (const auto& [name, entry] : json.items()) {
    dict.entries.emplace_back(MarkedText(name, /*is_markup=*/false), OfJson(entry));
  }
  return Of(std::move(dict));
}

Dict* Value::mutable_dict() const { return Pointer<Dict>(); }

int64_t Value::AsInt() const {
  return is_bool() ? std::get<bool>(value_) : std::get<int64_t>(value_);
}

double Value::AsFloat() const {
  return is_float() ? std::get<double>(value_) : static_cast<double>(AsInt());
}

bool Value::IsTrue() const {
  if (is_number()) return AsFloat() != 0;
  if (text() != nullptr) return text()->size() > 0;
  if (list() != nullptr) return !list()->empty();
  if (dict() != nullptr) return dict()->is_namespace || !dict()->entries.empty();
  return is_function();
}

const char* Value::TypeName() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_float()) return "float";
  if (is_text()) return "str";
  if (list() != nullptr) return is_tuple_ ? "tuple" : "list";
  return dict() != nullptr ? "dict" : "function";
}

bool Equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return a.AsFloat() == b.AsFloat();
    return a.AsInt() == b.AsInt();
  }
  if (a.text() != nullptr && b.text() != nullptr) return a.text()->text() == b.text()->text();
  if (a.list() != nullptr && b.list() != nullptr) {
    if (a.is_tuple() != b.is_tuple()) return false;
    return std::equal(a.list()->begin(), a.list()->end(), b.list()->begin(), b.list()->end(),
                      [](const Value& x, const Value& y) { return Equal(x, y); });
  }
  if (a.dict() != nullptr && b.dict() != nullptr) {
    if (a.dict()->is_namespace || b.dict()->is_namespace) return a.dict() == b.dict();
    const auto& entries = a.dict()->entries;
    return entries.size() == b.dict()->entries.size() &&
           std::all_of(entries.begin(), entries.end(), [&](const auto& entry) {
             const Value* other = b.dict()->Find(entry.first.text());
             return other != nullptr && Equal(entry.second, *other);
           });
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

// The shortest digits that read back the same, laid out as Python does: with an exponent below 1e-4
// and from 1e16 on.
std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  const std::string written(buffer, end);  // "-1.25e+02"
  const size_t e = written.find('e');
  const int exponent = std::stoi(written.substr(e + 1));
  const std::string sign = written[0] == '-' ? "-" : "";
  std::string digits = written.substr(sign.size(), e - sign.size());
  if (digits.size() > 1) digits.erase(1, 1);  // the point
  if (exponent < -4 || exponent >= 16) {
    const std::string fraction = digits.size() > 1 ? absl::StrCat(".", digits.substr(1)) : "";
    return absl::StrFormat("%s%c%se%+03d", sign, digits[0], fraction, exponent);
  }
  if (exponent < 0) return absl::StrCat(sign, "0.", std::string(-exponent - 1, '0'), digits);
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  const std::string fraction = digits.size() > whole ? digits.substr(whole) : "0";
  return absl::StrCat(sign, digits.substr(0, whole), ".", fraction);
}

namespace {

// As Python's str.isprintable, but for characters that are not assigned.
bool IsPrintable(uint32_t code) {
  if (code < 0x20 || (code >= 0x7F && code <= 0xA0) || code == 0xAD) return false;
  if (code == ' ') return true;
  const bool is_format = (code >= 0x200B && code <= 0x200F) || (code >= 0x202A && code <= 0x202E) ||
                         (code >= 0x2060 && code <= 0x206F) || code == 0x180E || code == 0xFEFF ||
                         (code >= 0xFFF9 && code <= 0xFFFB) || (code >= 0xE0000 && code <= 0xE007F);
  const bool is_private = (code >= 0xE000 && code <= 0xF8FF) || code >= 0xF0000;
  return !is_format && !is_private && !IsWhiteSpace(code);
}

std::string Escaped(std::string_view text, char quote) {
  std::string escaped;
  while (!text.empty()) {
    const Utf8Unit unit = NextUtf8Unit(text);
    const uint32_t code = unit.code_point;
    if (code == '\\' || code == static_cast<uint32_t>(quote)) {
      escaped += {'\\', static_cast<char>(code)};
    } else if (code == '\n' || code == '\r' || code == '\t') {
      absl::StrAppend(&escaped, "\\", code == '\n' ? "n" : code == '\r' ? "r" : "t");
    } else if (IsPrintable(code)) {
      escaped += text.substr(0, unit.num_bytes);
    } else if (code < 0x100) {
      absl::StrAppendFormat(&escaped, "\\x%02x", code);
    } else if (code < 0x10000) {
      absl::StrAppendFormat(&escaped, "\\u%04x", code);
    } else {
      absl::StrAppendFormat(&escaped, "\\U%08x", code);
    }
    text.remove_prefix(unit.num_bytes);
  }
  return escaped;
}

// In Python's quotes.
void AppendRepr(const MarkedText& text, MarkedText& out) {
  const bool has_single = text.text().find('\'') != std::string::npos;
  const bool has_double = text.text().find('"') != std::string::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  const MarkedText quotes(std::string(1, quote), /*is_markup=*/true);
  out.Append(quotes);
  for (const TextPiece& piece : text.Pieces()) {
    out.Append(MarkedText(Escaped(piece.text, quote), piece.is_markup));
  }
  out.Append(quotes);
}

void AppendMarkup(std::string_view text, MarkedText& out) {
  out.Append(MarkedText(std::string(text), /*is_markup=*/true));
}

void AppendText(const Value& value, bool is_nested, MarkedText& out) {
  if (value.is_text())
    return is_nested ? AppendRepr(*value.text(), out) : out.Append(*value.text());
  if (value.is_undefined()) return AppendMarkup(is_nested ? "Undefined" : "", out);
  if (value.is_none()) return AppendMarkup("None", out);
  if (value.is_bool()) return AppendMarkup(value.IsTrue() ? "True" : "False", out);
  if (value.is_int()) return AppendMarkup(absl::StrCat(value.AsInt()), out);
  if (value.is_float()) return AppendMarkup(FloatText(value.AsFloat()), out);
  if (value.list() != nullptr) {
    AppendMarkup(value.is_tuple() ? "(" : "[", out);
    const char* separator = "";
    for (const Value& entry : *value.list()) {
      AppendMarkup(std::exchange(separator, ", "), out);
      AppendText(entry, true, out);
    }
    if (value.is_tuple() && value.list()->size() == 1) AppendMarkup(",", out);
    return AppendMarkup(value.is_tuple() ? ")" : "]", out);
  }
  if (value.dict() == nullptr) return AppendMarkup("<function>", out);
  if (value.dict()->is_namespace) return AppendMarkup("<Namespace>", out);  // of any weight
  AppendMarkup("{", out);
  const char* separator = "";
  for (const auto& [key, entry] : value.dict()->entries) {
    AppendMarkup(std::exchange(separator, ", "), out);
    AppendRepr(key, out);
    AppendMarkup(": ", out);
    AppendText(entry, true, out);
  }
  AppendMarkup("}", out);
}

void AppendEscaped(uint32_t code, std::string& out) {
  if (code >= 0x10000) {  // as two surrogates
    AppendEscaped(0xD800 + ((code - 0x10000) >> 10), out);
    code = 0xDC00 + ((code - 0x10000) & 0x3FF);
  }
  absl::StrAppendFormat(&out, "\\u%04x", code);
}

void AppendJsonString(std::string_view text, bool ascii, std::string& out) {
  out += '"';
  static constexpr std::pair<char, char> kShort[] = {
      {'"', '"'}, {'\\', '\\'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}, {'\b', 'b'}, {'\f', 'f'}};
  while (!text.empty()) {
    const Utf8Unit unit = NextUtf8Unit(text);
    const uint32_t code = unit.code_point;
    const auto* named = std::find_if(std::begin(kShort), std::end(kShort), [&](const auto& each) {
      return static_cast<uint32_t>(each.first) == code;
    });
    if (named != std::end(kShort)) {
      out += {'\\', named->second};
    } else if (code < 0x20 || (ascii && code > 0x7E)) {
      AppendEscaped(code, out);
    } else {
      out += text.substr(0, unit.num_bytes);
    }
    text.remove_prefix(unit.num_bytes);
  }
  out += '"';
}

std::string JsonFloat(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return FloatText(value);
}

void AppendJson(const Value& value, const JsonStyle& style, int depth, std::string& out) {
  const auto break_line = [&](int levels) {
    if (style.indent >= 0) absl::StrAppend(&out, "\n", std::string(levels * style.indent, ' '));
  };
  const std::string comma = !style.item_separator.empty() ? style.item_separator
                            : style.indent >= 0           ? ","
                                                          : ", ";
  if (value.is_text()) return AppendJsonString(value.text()->text(), style.ascii, out);
  if (value.list() != nullptr && !value.list()->empty()) {
    out += '[';
    bool is_first = true;
    for (const Value& entry : *value.list()) {
      if (!std::exchange(is_first, false)) out += comma;
      break_line(depth + 1);
      AppendJson(entry, style, depth + 1, out);
    }
    break_line(depth);
    out += ']';
  } else if (value.dict() != nullptr && !value.dict()->entries.empty()) {
    std::vector<const std::pair<MarkedText, Value>*> entries;
    for (const auto& entry : value.dict()->entries) entries.push_back(&entry);
    if (style.sorts_keys) {
      std::stable_sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) {
        return a->first.text() < b->first.text();
      });
    }
    out += '{';
    bool is_first = true;
    for (const auto* entry : entries) {
      if (!std::exchange(is_first, false)) out += comma;
      break_line(depth + 1);
      AppendJsonString(entry->first.text(), style.ascii, out);
      out += style.key_separator.empty() ? ": " : style.key_separator;
      AppendJson(entry->second, style, depth + 1, out);
    }
    break_line(depth);
    out += '}';
  } else if (value.list() != nullptr) {
    out += "[]";
  } else if (value.dict() != nullptr) {
    out += "{}";
  } else if (value.is_bool()) {
    out += value.IsTrue() ? "true" : "false";
  } else if (value.is_int()) {
    absl::StrAppend(&out, value.AsInt());
  } else {
    out += value.is_float() ? JsonFloat(value.AsFloat()) : "null";
  }
}

}  // namespace

absl::StatusOr<MarkedText> ToText(const Value& value, WorkBudget& budget) {
  RETURN_IF_ERROR(budget.TakeText(value.weight()));
  if (value.is_text()) return *value.text();
  MarkedText text;
  AppendText(value, /*is_nested=*/false, text);
  return text;
}

std::string ToJson(const Value& value, const JsonStyle& style) {
  std::string json;
  AppendJson(value, style, 0, json);
  return json;
}

}  // namespace lockstep::jinja
