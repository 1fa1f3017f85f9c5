// Random patterns and texts, against PCRE2.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "model/grammar/regex.h"
#include "model/tokenizer/utf8.h"
#include "tests/support/grammar_texts.h"

namespace lockstep::grammar {
namespace {

constexpr size_t kMaxRegexTextCharacters = 10;

struct PcreCodeFree {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

class PcreRegex {
 public:
  // options: PCRE2_UCP makes \d, \w and \s Unicode's.
  explicit PcreRegex(std::string_view pattern, uint32_t options = 0) {
    int error = 0;
    size_t offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_DUPNAMES | options, &error,
                              &offset, nullptr));
    if (code_ != nullptr) data_.reset(pcre2_match_data_create(1, nullptr));
  }

  bool is_valid() const { return code_ != nullptr; }
  bool Has(std::string_view text, bool anchored) const {
    const int count =
        pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                    anchored ? PCRE2_ANCHORED | PCRE2_ENDANCHORED : 0, data_.get(), nullptr);
    EXPECT_TRUE(count >= 0 || count == PCRE2_ERROR_NOMATCH) << count;
    return count >= 0;
  }

 private:
  std::unique_ptr<pcre2_code, PcreCodeFree> code_;
  std::unique_ptr<pcre2_match_data, PcreCodeFree> data_;
};

// What a text is to be for a pattern: what everybody takes it for. Sets that are negated hold less
// than ASCII's or Unicode's do.
class EverybodysRegex {
 public:
  explicit EverybodysRegex(std::string_view pattern)
      : ascii_(pattern), unicode_(pattern, PCRE2_UCP) {
    const auto has = [&](std::string_view text) {
      return pattern.find(text) != std::string_view::npos;
    };
    holds_less_ = has("\\D") || has("\\W") || has("\\S") || (has("[^") && has("\\"));
  }

  bool is_valid() const { return ascii_.is_valid(); }
  bool Has(std::string_view text, bool anchored) const { return ascii_.Has(text, anchored); }
  void ExpectEqual(std::string_view text, bool anchored, bool is_match) const {
    const bool is_ascii = std::all_of(text.begin(), text.end(), [](char c) { return c > 0x1F; });
    if (is_ascii || !holds_less_) {
      ASSERT_EQ(is_match, ascii_.Has(text, anchored)) << "text <" << text << ">";
    } else if (is_match) {
      ASSERT_TRUE(ascii_.Has(text, anchored)) << "text <" << text << ">";
      ASSERT_TRUE(unicode_.Has(text, anchored)) << "text <" << text << ">";
    }
  }

 private:
  PcreRegex ascii_, unicode_;
  bool holds_less_ = false;
};

// A pattern, and how to make texts that match it (but for anchors).
struct RandomRegex {
  std::string pattern;
  std::function<std::string()> make_text;
};

class RegexGenerator {
 public:
  explicit RegexGenerator(uint32_t seed) : random_(seed) {}

  size_t Below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }
  bool Chance(size_t percent) { return Below(100) < percent; }
  std::string OneOf(const std::vector<std::string>& all) { return all[Below(all.size())]; }

  std::string AnyCharacter() {
    return OneOf({"a", "a", "b", "b", "c", "-", "0", "7", " ", "\n", "_", "é", "ü", "€", "😀", "A"});
  }
  std::string AnyText(size_t max_characters) {
    std::string text;
    for (size_t i = Below(max_characters + 1); i > 0; --i) text += AnyCharacter();
    return text;
  }

  // may_begin, may_end: whether the edges of the text are at its edges.
  RandomRegex Alternatives(int depth, bool may_begin, bool may_end) {
    RandomRegex all = Sequence(depth, may_begin, may_end);
    std::vector<std::function<std::string()>> makers = {all.make_text};
    while (Chance(30)) {
      const RandomRegex next = Sequence(depth, may_begin, may_end);
      all.pattern += "|" + next.pattern;
      makers.push_back(next.make_text);
    }
    all.make_text = [this, makers] { return makers[Below(makers.size())](); };
    return all;
  }

  // With a character gone, added or replaced.
  std::string Changed(const std::string& text) {
    std::vector<std::string> characters;
    for (size_t at = 0; at < text.size(); at += characters.back().size()) {
      const std::string_view rest = std::string_view(text).substr(at);
      characters.emplace_back(rest.substr(0, NextUtf8Unit(rest).num_bytes));
    }
    const size_t place = Below(characters.size() + 1);
    std::string changed;
    for (size_t i = 0; i <= characters.size(); ++i) {
      const bool is_gone = i == place && Chance(60);
      if (i == place && Chance(60)) changed += AnyCharacter();
      if (i < characters.size() && !is_gone) changed += characters[i];
    }
    return changed;
  }

 private:
  RandomRegex Sequence(int depth, bool may_begin, bool may_end) {
    const size_t num_pieces = Below(4);
    const bool begins = may_begin && Chance(25);
    const bool ends = may_end && Chance(25);
    RandomRegex all = {begins ? "^" : "", nullptr};
    std::vector<std::function<std::string()>> makers;
    for (size_t i = 0; i < num_pieces; ++i) {
      const bool is_first = may_begin && i == 0 && !begins;
      const bool is_last = may_end && i + 1 == num_pieces && !ends;
      const RandomRegex next = Repeated(depth, is_first, is_last);
      all.pattern += next.pattern;
      makers.push_back(next.make_text);
    }
    if (ends) all.pattern += "$";
    all.make_text = [makers] {
      std::string text;
      for (const auto& make : makers) text += make();
      return text;
    };
    return all;
  }

  RandomRegex Repeated(int depth, bool may_begin, bool may_end) {
    static const std::vector<std::pair<std::string, std::array<size_t, 2>>> kRepeats = {
        {"*", {0, 3}},    {"+", {1, 3}},     {"?", {0, 1}},     {"{2}", {2, 2}},
        {"{1,}", {1, 3}}, {"{0,2}", {0, 2}}, {"{1,3}", {1, 3}}, {"{0}", {0, 0}}};
    const bool is_repeated = Chance(35);
    RandomRegex atom = Atom(depth, may_begin && !is_repeated, may_end && !is_repeated);
    if (!is_repeated) return atom;
    const auto& [repeat, counts] = kRepeats[Below(kRepeats.size())];
    const auto make_once = atom.make_text;
    const auto make_text = [this, make_once, counts = counts] {
      std::string text;
      for (size_t i = counts[0] + Below(counts[1] - counts[0] + 1); i > 0; --i) text += make_once();
      return text;
    };
    return {absl::StrCat(atom.pattern, repeat, Chance(20) ? "?" : ""), make_text};
  }

  RandomRegex Atom(int depth, bool may_begin, bool may_end) {
    if (depth > 0 && Chance(35)) {
      RandomRegex inside = Alternatives(depth - 1, may_begin, may_end);
      return {absl::StrCat(OneOf({"(", "(?:", "(?P<n>", "(?<m>"}), inside.pattern, ")"),
              inside.make_text};
    }
    if (Chance(25)) return Class();
    if (Chance(20)) return Escape();
    if (Chance(15)) return {".", [this] { return AnyCharacter(); }};
    const std::string c = AnyCharacter();
    return {c, [c] { return c; }};
  }

  RandomRegex Escape() {
    static const std::vector<std::pair<std::string, std::vector<std::string>>> kEscapes = {
        {"\\d", {"0", "7"}},      {"\\D", {"a", "é"}},
        {"\\w", {"a", "_", "7"}}, {"\\W", {"-", "é", "\n"}},
        {"\\s", {" ", "\n"}},     {"\\S", {"a", "😀"}},
        {"\\n", {"\n"}},          {"\\x61", {"a"}},
        {"\\xe9", {"é"}},         {"\\-", {"-"}},
        {"\\_", {"_"}},           {"\\€", {"€"}}};
    const auto& [pattern, texts] = kEscapes[Below(kEscapes.size())];
    return {pattern, [this, texts = texts] { return OneOf(texts); }};
  }

  RandomRegex Class() {
    std::string members;
    std::vector<std::string> texts;
    for (size_t i = 1 + Below(3); i > 0; --i) {
      if (Chance(30)) {
        members += OneOf({"a-c", "b-é", " -0", "é-😀", "\\x00-\\x1f", "\\--7", "A-Z"});
        texts.push_back(AnyCharacter());
      } else if (Chance(30)) {
        const RandomRegex escape = Escape();
        members += escape.pattern;
        texts.push_back(escape.make_text());
      } else {
        texts.push_back(OneOf({"a", "b", "é", "€", "^", "$", ".", "(", "|", "*", "{"}));
        // PCRE2 takes [. for POSIX's, even at the beginning.
        members += (texts.back() == "^" || texts.back() == "." ? "\\" : "") + texts.back();
      }
    }
    const bool is_negated = Chance(25);
    const auto make_text = [this, texts, is_negated] {
      return is_negated ? AnyCharacter() : OneOf(texts);
    };
    return {absl::StrCat("[", Chance(10) && !is_negated ? "-" : "", is_negated ? "^" : "", members,
                         Chance(10) ? "-" : "", "]"),
            make_text};
  }

  std::mt19937 random_;
};

absl::StatusOr<Grammar> BuildRandomRegex(std::string_view pattern, bool anchored) {
  GrammarBuilder builder;
  const auto part = AddRegex(pattern, builder, {.anchored = anchored});
  if (!part.ok()) return part.status();
  return builder.Build(*part);
}

// Short: PCRE2 goes back for a long time in some.
std::string ShortRegexText(const std::string& text) {
  std::string cut;
  for (size_t i = 0; i < kMaxRegexTextCharacters && cut.size() < text.size(); ++i) {
    const std::string_view rest = std::string_view(text).substr(cut.size());
    cut += rest.substr(0, NextUtf8Unit(rest).num_bytes);
  }
  return cut;
}

class RegexRandomTest : public ::testing::TestWithParam<bool> {};

TEST_P(RegexRandomTest, TextsMatchAsInPcre2) {
  const bool anchored = GetParam();
  RegexGenerator random(anchored ? 1 : 2);
  std::array<int, 2> counts = {};
  for (int i = 0; i < 3000; ++i) {
    const RandomRegex regex = random.Alternatives(3, /*may_begin=*/true, /*may_end=*/true);
    SCOPED_TRACE(absl::StrCat("pattern <", regex.pattern, ">"));
    const EverybodysRegex truth(regex.pattern);
    ASSERT_TRUE(truth.is_valid());
    const auto grammar = BuildRandomRegex(regex.pattern, anchored);
    for (int k = 0; k < 9; ++k) {
      std::string text = k < 8 ? regex.make_text() : random.AnyText(4);
      if (!anchored && random.Chance(60)) text = random.AnyText(2) + text + random.AnyText(2);
      if (k % 2 == 1) text = random.Changed(text);
      text = ShortRegexText(text);
      const bool is_match = grammar.ok() && Matches(*grammar, text);
      ASSERT_NO_FATAL_FAILURE(truth.ExpectEqual(text, anchored, is_match)) << grammar.status();
      const auto half = std::string_view(text).substr(0, text.size() / 2);
      ASSERT_TRUE(!is_match || IsPrefix(*grammar, half)) << half;
      ++counts[is_match ? 1 : 0];
    }
  }
  EXPECT_GT(counts[0], 5000);
  EXPECT_GT(counts[1], 5000);
}

// Whatever is not refused means what it does in PCRE2.
TEST_P(RegexRandomTest, RandomSignsAreRefusedOrMatchAsInPcre2) {
  const bool anchored = GetParam();
  RegexGenerator random(anchored ? 3 : 4);
  const std::vector<std::string> signs = {
      "a", "a", "b",   "b", "(", "(",   ")",  ")",  "[",   "]",  "{", "}",  "|", "*", "+",    "?",
      "^", "$", "\\",  "-", ",", ":",   "1",  "2",  "<",   ">",  ".", "P",  "=", "!", "d",    "w",
      "x", "é", "(?:", "#", "&", "{1,", "a?", "[^", "\\W", "a-", "😀", "[a", "n", "k", "\xFF", "/"};
  int num_accepted = 0;
  for (int i = 0; i < 40000; ++i) {
    std::string pattern;
    for (size_t k = 1 + random.Below(9); k > 0; --k) pattern += random.OneOf(signs);
    SCOPED_TRACE(absl::StrCat("pattern <", pattern, ">"));
    GrammarBuilder builder;
    const auto part = AddRegex(pattern, builder, {.anchored = anchored});
    if (!part.ok()) continue;
    ++num_accepted;
    const EverybodysRegex truth(pattern);
    ASSERT_TRUE(truth.is_valid());
    const auto grammar = builder.Build(*part);
    for (int k = 0; k < 5; ++k) {
      std::string text;
      for (size_t n = random.Below(5); n > 0; --n) text += random.OneOf(signs);
      if (k == 0) text = pattern;
      if (FindInvalidUtf8(text) != std::string_view::npos) continue;
      const bool is_match = grammar.ok() && Matches(*grammar, text);
      ASSERT_NO_FATAL_FAILURE(truth.ExpectEqual(text, anchored, is_match)) << grammar.status();
    }
  }
  EXPECT_GT(num_accepted, 5000);
}

INSTANTIATE_TEST_SUITE_P(Anchored, RegexRandomTest, ::testing::Bool());

}  // namespace
}  // namespace lockstep::grammar
