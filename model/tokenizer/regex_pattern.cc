// TranslatePattern: from Oniguruma's dialect to PCRE2's.
#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "model/tokenizer/regex_splitter.h"
#include "model/tokenizer/tokenizer_file.h"

namespace lockstep {
namespace {

// Members of a PCRE2 character class: White_Space (see IsWhiteSpace) and all other characters.
constexpr std::string_view kSpaceRanges =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F})"
    R"(\x{3000})";
constexpr std::string_view kNonSpaceRanges =
    R"(\x{0}-\x{8}\x{E}-\x{1F}\x{21}-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF})"
    R"(\x{200B}-\x{2027}\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{D7FF})"
    R"(\x{E000}-\x{10FFFF})";

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (at_ < pattern_.size() && status_.ok()) Step();
    if (!status_.ok()) return status_;
    return std::move(out_);
  }

 private:
  void Step() {
    const char c = pattern_[at_];
    if (c == '\\') return Escape();
    if (in_class_) return ClassMember(c);
    if (c == '[') return OpenClass();
    if (c == '(') return Group();
    if (Next("{,")) return Refuse(2, "a repeat without its lower bound");
    if (Next("}+")) return Refuse(2, "a repeat of a counted repeat");  // possessive in PCRE2 only
    if (Next("}?") && EndsACount()) return Refuse(2, "a counted repeat that may be left out");
    Copy(1);
  }

  // The } here is of {n}: {n}? is lazy in PCRE2, and (?:...{n})? in Oniguruma.
  bool EndsACount() const {
    size_t begin = at_;
    while (begin > 0 && absl::ascii_isdigit(static_cast<unsigned char>(pattern_[begin - 1]))) {
      --begin;
    }
    return begin < at_ && begin > 0 && pattern_[begin - 1] == '{';
  }

  void OpenClass() {
    in_class_ = true;
    Copy(1);
    if (Next("^")) Copy(1);
    if (Next("]")) Refuse(2, "a class that begins with ]");
  }

  void ClassMember(char c) {
    if (c == '[') return Refuse(2, "a class inside a class");
    if (Next("&&")) return Refuse(2, "a class intersection");
    if (c == ']') in_class_ = false;
    Copy(1);
  }

  // Groups that mean the same in both: (...), (?:...), (?i:...), look-around, atomic. From the
  // middle of a branch on, (?i) takes the branches behind it along in Oniguruma.
  void Group() {
    if (Next("(?i)") && at_ > 0) return Refuse(4, "an option that holds from here on");
    for (const std::string_view kind :
         {"(?:", "(?i:", "(?i)", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (Next(kind)) return Copy(kind.size());
    }
    if (Next("(?") || Next("(*")) return Refuse(4, "a group of this kind");
    Copy(1);
  }

  void Escape() {
    if (at_ + 1 == pattern_.size()) return Refuse(1, "a backslash at the end");
    const char c = pattern_[at_ + 1];
    if (c == 's' || c == 'S') return SpaceEscape(c == 's');
    const bool same_in_both = !absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                              std::string_view("dDpPrntfx").find(c) != std::string_view::npos;
    if (!same_in_both) return Refuse(2, "this escape");
    const bool is_property = c == 'p' || c == 'P';
    if (is_property && pattern_.substr(at_ + 2, 1) != "{") {  // Oniguruma takes it for a letter
      return Refuse(2, "a property without braces");
    }
    Copy(2);
    if (absl::ascii_isalpha(static_cast<unsigned char>(c)) && Next("{")) {
      Copy(std::min(pattern_.find('}', at_), pattern_.size() - 1) + 1 - at_);
    }
  }

  void SpaceEscape(bool space) {
    const std::string_view ranges = space ? kSpaceRanges : kNonSpaceRanges;
    if (in_class_) {
      out_ += ranges;
    } else {
      out_.append("[").append(ranges).append("]");
    }
    at_ += 2;
  }

  bool Next(std::string_view text) const {
    return pattern_.substr(at_).substr(0, text.size()) == text;
  }

  void Copy(size_t num_bytes) {
    out_ += pattern_.substr(at_, num_bytes);
    at_ += num_bytes;
  }

  void Refuse(size_t num_bytes, const std::string& what) {
    status_ = absl::InvalidArgumentError(
        absl::StrCat("regular expression ", Quote(pattern_), ": ", what, " (byte ", at_, ", ",
                     Quote(pattern_.substr(at_, num_bytes)), ") is not supported"));
  }

  std::string_view pattern_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<std::string> TranslatePattern(std::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace lockstep
