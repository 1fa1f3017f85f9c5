#include "model/chat_template/lexer.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/base/status_macros.h"
#include "model/chat_template/text_operations.h"
#include "model/json/strict_json.h"
#include "model/tokenizer/utf8.h"

namespace lockstep::jinja {
namespace {

constexpr std::string_view kOperators[] = {"**", "//", "==", "!=", "<=", ">=", "+", "-", "*",
                                           "/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                           "]",  "{",  "}",  ".",  ",",  ":",  "|"};

bool BeginsName(char c) { return absl::ascii_isalpha(c) || c == '_'; }
bool GoesOnName(char c) { return absl::ascii_isalnum(c) || c == '_'; }

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) RETURN_IF_ERROR(Next());
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }

  void Add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void Advance(size_t num_bytes) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(at_ + num_bytes),
                                         '\n'));
    at_ += num_bytes;
  }

  // Text up to the next delimiter, and what that begins.
  absl::Status Next() {
    size_t begin = at_;
    while (begin < source_.size() &&
           !(source_[begin] == '{' && begin + 1 < source_.size() &&
             std::string_view("{%#").find(source_[begin + 1]) != std::string_view::npos)) {
      ++begin;
    }
    const bool is_end = begin == source_.size();
    const char delimiter = is_end ? '\0' : source_[begin + 1];
    const char sign = begin + 2 < source_.size() ? source_[begin + 2] : '\0';
    size_t text_end = begin;
    if (!is_end && sign == '-') {
      text_end = SpaceBefore(source_, at_, begin);
    } else if (!is_end && delimiter != '{' && sign != '+') {
      text_end = WithoutIndent(begin);
    }
    if (text_end > at_) Add(TokenKind::kText, source_.substr(at_, text_end - at_));
    Advance(begin - at_);
    if (is_end) return absl::OkStatus();
    const bool is_signed = sign == '-' || sign == '+';
    Advance(is_signed ? 3 : 2);
    if (delimiter == '#') return SkipComment();
    if (delimiter == '{') return LexInside(TokenKind::kOutputBegin, TokenKind::kOutputEnd, "}}");
    if (const size_t raw = RawLength(); raw > 0) return LexRaw(raw);
    return LexInside(TokenKind::kBlockBegin, TokenKind::kBlockEnd, "%}");
  }

  // A block that stands first on its line takes the white space before it along.
  size_t WithoutIndent(size_t end) const {
    const size_t line = std::string_view(source_).substr(at_, end - at_).rfind('\n');
    const size_t low = line == std::string_view::npos ? at_ : at_ + line + 1;
    const size_t start = SpaceBefore(source_, low, end);
    const bool is_first = start == 0 || source_[start - 1] == '\n';
    return is_first ? start : end;
  }

  // What follows a delimiter's end that was `sign`ed.
  void SkipAfter(char sign, bool is_block) {
    if (sign == '-') {
      Advance(SpaceAfter(source_, at_) - at_);
    } else if (is_block && sign != '+' && rest().starts_with("\n")) {
      Advance(1);
    }
  }

  absl::Status SkipComment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) return TemplateError(line_, "a comment has no end");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    Advance(end + 2 - at_);
    SkipAfter(sign, /*is_block=*/true);
    return absl::OkStatus();
  }

  // Of "raw %}" after "{%", with its white space; 0: it is another block.
  size_t RawLength() const { return KeywordLength(at_, "raw"); }

  // Of the rest of a block that is but a keyword, from `from` on; 0: it is not.
  size_t KeywordLength(size_t from, std::string_view keyword) const {
    size_t at = from;
    at = SpaceAfter(source_, at);
    if (!std::string_view(source_).substr(at).starts_with(keyword)) return 0;
    at = SpaceAfter(source_, at + keyword.size());
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    return std::string_view(source_).substr(at).starts_with("%}") ? at + 2 - from : 0;
  }

  absl::Status LexRaw(size_t num_bytes) {
    Advance(num_bytes);
    SkipAfter(source_[at_ - 3], /*is_block=*/false);
    for (size_t end = at_; (end = source_.find("{%", end)) != std::string::npos; end += 2) {
      const char sign = end + 2 < source_.size() ? source_[end + 2] : '\0';
      const size_t keyword = end + (sign == '-' || sign == '+' ? 3 : 2);
      const size_t length = KeywordLength(keyword, "endraw");
      if (length == 0) continue;
      const size_t text_end = sign == '+'   ? end
                              : sign == '-' ? SpaceBefore(source_, at_, end)
                                            : WithoutIndent(end);
      if (text_end > at_) Add(TokenKind::kText, source_.substr(at_, text_end - at_));
      Advance(keyword + length - at_);
      SkipAfter(source_[at_ - 3], /*is_block=*/true);
      return absl::OkStatus();
    }
    return TemplateError(line_, "a raw block has no end");
  }

  absl::Status LexInside(TokenKind begin, TokenKind end, std::string_view delimiter) {
    Add(begin, "");
    int depth = 0;  // of brackets, in which "}}" may end two dicts
    while (true) {
      Advance(SpaceAfter(source_, at_) - at_);
      if (rest().empty()) {
        return TemplateError(line_, absl::StrCat("there is no ", std::string(delimiter)));
      }
      const bool is_signed = rest()[0] == '-' || (rest()[0] == '+' && end == TokenKind::kBlockEnd);
      if (depth == 0 && rest().substr(is_signed ? 1 : 0).starts_with(delimiter)) {
        const char sign = is_signed ? rest()[0] : '\0';
        Add(end, "");
        Advance(delimiter.size() + (is_signed ? 1 : 0));
        SkipAfter(sign, end == TokenKind::kBlockEnd);
        return absl::OkStatus();
      }
      RETURN_IF_ERROR(LexOne(depth));
    }
  }

  absl::Status LexOne(int& depth) {
    const char c = rest()[0];
    if (c == '"' || c == '\'') return LexString();
    if (BeginsName(c)) {
      const std::string_view all = rest();
      const size_t size = std::find_if_not(all.begin(), all.end(), GoesOnName) - all.begin();
      Add(TokenKind::kName, std::string(all.substr(0, size)));
      Advance(size);
      return absl::OkStatus();
    }
    if (absl::ascii_isdigit(c)) return LexNumber();
    for (const std::string_view name : kOperators) {
      if (!rest().starts_with(name)) continue;
      if (std::string_view("([{").find(c) != std::string_view::npos) ++depth;
      if (std::string_view(")]}").find(c) != std::string_view::npos && --depth < 0) {
        return TemplateError(line_, absl::StrCat("unexpected '", std::string(name), "'"));
      }
      Add(TokenKind::kOperator, std::string(name));
      Advance(name.size());
      return absl::OkStatus();
    }
    return TemplateError(
        line_,
        absl::StrCat("unexpected ", Quoted(rest().substr(0, NextUtf8Unit(rest()).num_bytes))));
  }

  absl::Status LexNumber() {
    const std::string_view all = rest();
    const auto skip_digits = [&](size_t at) {
      while (at < all.size() && (absl::ascii_isdigit(all[at]) || all[at] == '_')) ++at;
      return at;
    };
    size_t size = skip_digits(0);
    bool is_float = false;
    if (size + 1 < all.size() && all[size] == '.' && absl::ascii_isdigit(all[size + 1])) {
      is_float = true;
      size = skip_digits(size + 1);
    }
    if (size < all.size() && (all[size] == 'e' || all[size] == 'E')) {
      size_t at = size + 1;
      if (at < all.size() && (all[at] == '+' || all[at] == '-')) ++at;
      if (at < all.size() && absl::ascii_isdigit(all[at])) {
        is_float = true;
        size = skip_digits(at);
      }
    }
    Add(is_float ? TokenKind::kFloat : TokenKind::kInteger,
        absl::StrReplaceAll(std::string(all.substr(0, size)), {{"_", ""}}));
    Advance(size);
    return absl::OkStatus();
  }

  absl::Status LexString() {
    const char quote = rest()[0];
    std::string text;
    size_t at = at_ + 1;
    while (at < source_.size() && source_[at] != quote) {
      if (source_[at] == '\\' && at + 1 < source_.size()) {
        RETURN_IF_ERROR(Unescape(at, text));
      } else {
        text += source_[at++];
      }
    }
    if (at >= source_.size()) return TemplateError(line_, "a string has no end");
    Add(TokenKind::kString, std::move(text));
    Advance(at + 1 - at_);
    return absl::OkStatus();
  }

  // Python's escapes. at: of the backslash, then behind the escape.
  absl::Status Unescape(size_t& at, std::string& text) const {
    static constexpr std::pair<char, char> kSimple[] = {
        {'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'\\', '\\'}, {'\'', '\''},
        {'"', '"'},  {'b', '\b'}, {'f', '\f'}, {'a', '\a'},  {'v', '\v'}};
    const char kind = source_[at + 1];
    for (const auto& [name, meaning] : kSimple) {
      if (kind != name) continue;
      text += meaning;
      at += 2;
      return absl::OkStatus();
    }
    if (kind >= '0' && kind <= '7') {
      uint32_t code = 0;
      size_t end = at + 1;
      while (end < source_.size() && end < at + 4 && source_[end] >= '0' && source_[end] <= '7') {
        code = code * 8 + static_cast<uint32_t>(source_[end++] - '0');
      }
      AppendCodePoint(code, text);
      at = end;
      return absl::OkStatus();
    }
    const size_t num_digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    if (kind == '\n') {  // goes on in the next line
      at += 2;
      return absl::OkStatus();
    }
    if (num_digits == 0) {
      text += {'\\', kind};
      at += 2;
      return absl::OkStatus();
    }
    uint32_t code = 0;
    const bool is_number = absl::SimpleHexAtoi(source_.substr(at + 2, num_digits), &code);
    if (at + 2 + num_digits > source_.size() || !is_number || code > 0x10FFFF ||
        (code >= 0xD800 && code < 0xE000)) {
      return TemplateError(line_, "a string has an escape that is no character");
    }
    AppendCodePoint(code, text);
    at += 2 + num_digits;
    return absl::OkStatus();
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

absl::Status TemplateError(int line, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", message));
}

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source) {
  std::string lines = absl::StrReplaceAll(std::string(source), {{"\r\n", "\n"}, {"\r", "\n"}});
  if (!lines.empty() && lines.back() == '\n') lines.pop_back();  // as Jinja does by default
  return Lexer(std::move(lines)).Run();
}

}  // namespace lockstep::jinja
