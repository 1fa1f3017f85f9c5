#include "model/grammar/regex.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/grammar/regex_characters.h"
#include "model/json/strict_json.h"
#include "model/tokenizer/utf8.h"

namespace lockstep::grammar {
namespace {

using Part = GrammarBuilder::Part;

// Of groups in each other: each level takes some kilobytes of the stack.
constexpr int kMaxRegexDepth = 100;

// Which edges of the text a match is tied to.
enum RegexTies : size_t { kTiedToNone = 0, kTiedToBegin = 1, kTiedToEnd = 2, kNumTies = 4 };

// What a piece of the pattern matches, apart by the edges that it is tied to: (^|,)a has a part for
// RegexTies::kTiedToBegin, which is "a", and one for kTiedToNone, which is ",a".
struct RegexPiece {
  std::array<std::optional<Part>, kNumTies> parts = {};
  // Of its first ^ and $ in the pattern.
  std::optional<size_t> begin_at = std::nullopt;
  std::optional<size_t> end_at = std::nullopt;

  static RegexPiece Of(Part part) { return {.parts = {part}}; }
  bool is_tied() const { return begin_at.has_value() || end_at.has_value(); }
};

struct RegexRepeat {
  int64_t min = 0;
  std::optional<int64_t> max = std::nullopt;
};

class RegexParser {
 public:
  RegexParser(std::string_view pattern, GrammarBuilder& builder, const RegexOptions& options)
      : cursor_(pattern), builder_(builder), options_(options) {}

  absl::StatusOr<Part> Run() {
    ASSIGN_OR_RETURN(const RegexPiece whole, ParseAlternatives());
    if (!cursor_.is_end()) return RegexError(cursor_.at(), "a ) has no ( before it");
    std::vector<Part> choices;
    for (size_t ties = 0; ties < kNumTies; ++ties) {
      if (!whole.parts[ties].has_value()) continue;
      std::vector<Part> sequence = {*whole.parts[ties]};
      if (!options_.anchored && (ties & kTiedToBegin) == 0) {
        sequence.insert(sequence.begin(), Anything());
      }
      if (!options_.anchored && (ties & kTiedToEnd) == 0) sequence.push_back(Anything());
      choices.push_back(SequenceOf(std::move(sequence)));
    }
    return ChoiceOf(std::move(choices));
  }

 private:
  Part SequenceOf(std::vector<Part> parts) {
    return parts.size() == 1 ? parts[0] : builder_.Sequence(std::move(parts));
  }
  Part ChoiceOf(std::vector<Part> parts) {
    return parts.size() == 1 ? parts[0] : builder_.Choice(std::move(parts));
  }
  Part Anything() { return builder_.Repeat(Character(AllCharactersBut({})), 0, std::nullopt); }

  // Made once for equal sets: a pattern may have 65,536 dots.
  Part Character(const CharacterSet& set) {
    std::u32string key;
    for (const CodePointRange& range : set) key += {range.first, range.last};
    const auto [made, is_new] = characters_.try_emplace(std::move(key));
    if (!is_new) return made->second;
    if (options_.character && !set.empty()) return made->second = options_.character(builder_, set);
    const Part part = builder_.Character(set);
    // Beyond ASCII it takes tens of states, in a repeat each time: a call takes one.
    const bool is_large = !set.empty() && set.back().last > 0x7F;
    return made->second = is_large ? builder_.MakeRule(part) : part;
  }

  absl::StatusOr<RegexPiece> ParseAlternatives() {
    RegexPiece all;
    std::array<std::vector<Part>, kNumTies> choices;
    do {
      ASSIGN_OR_RETURN(const RegexPiece next, ParseSequence());
      for (size_t ties = 0; ties < kNumTies; ++ties) {
        if (next.parts[ties].has_value()) choices[ties].push_back(*next.parts[ties]);
      }
      if (!all.begin_at.has_value()) all.begin_at = next.begin_at;
      if (!all.end_at.has_value()) all.end_at = next.end_at;
    } while (cursor_.Skip("|"));
    for (size_t ties = 0; ties < kNumTies; ++ties) {
      if (!choices[ties].empty()) all.parts[ties] = ChoiceOf(std::move(choices[ties]));
    }
    return all;
  }

  absl::StatusOr<RegexPiece> ParseSequence() {
    std::vector<RegexPiece> pieces;
    while (!cursor_.is_end() && !cursor_.Sees("|") && !cursor_.Sees(")")) {
      ASSIGN_OR_RETURN(RegexPiece piece, ParseRepeated());
      if (piece.begin_at.has_value() && !pieces.empty()) {
        return RegexError(*piece.begin_at, "^ is supported only where the text begins");
      }
      if (!pieces.empty() && pieces.back().end_at.has_value()) {
        return RegexError(*pieces.back().end_at, "$ is supported only where the text ends");
      }
      pieces.push_back(std::move(piece));
    }
    if (pieces.empty()) return RegexPiece::Of(builder_.Empty());
    return pieces.size() == 1 ? pieces[0] : Join(pieces);
  }

  // At least two, of which only the first may be tied to the begin, and only the last to the end.
  RegexPiece Join(const std::vector<RegexPiece>& pieces) {
    RegexPiece joined = {.begin_at = pieces.front().begin_at, .end_at = pieces.back().end_at};
    for (const size_t begin : {kTiedToNone, kTiedToBegin}) {
      for (const size_t end : {kTiedToNone, kTiedToEnd}) {
        const std::optional<Part> first = pieces.front().parts[begin];
        const std::optional<Part> last = pieces.back().parts[end];
        if (!first.has_value() || !last.has_value()) continue;
        std::vector<Part> sequence = {*first};
        for (size_t i = 1; i + 1 < pieces.size(); ++i) {
          sequence.push_back(*pieces[i].parts[kTiedToNone]);
        }
        sequence.push_back(*last);
        joined.parts[begin | end] = builder_.Sequence(std::move(sequence));
      }
    }
    return joined;
  }

  absl::StatusOr<RegexPiece> ParseRepeated() {
    const size_t at = cursor_.at();
    ASSIGN_OR_RETURN(const std::optional<RegexRepeat> stray, ParseRepeat());
    if (stray.has_value()) {
      return RegexError(at, absl::StrCat(Quoted(cursor_.From(at)), " has nothing to repeat"));
    }
    ASSIGN_OR_RETURN(RegexPiece piece, ParseAtom());
    const size_t repeat_at = cursor_.at();
    ASSIGN_OR_RETURN(const std::optional<RegexRepeat> repeat, ParseRepeat());
    if (!repeat.has_value()) return piece;
    if (piece.is_tied()) return RegexError(repeat_at, "^ and $ cannot be repeated");
    if (cursor_.Sees("+")) {
      return RegexError(repeat_at,
                        "a repeat that gives nothing back (possessive) is not supported");
    }
    cursor_.Skip("?");  // lazy: which texts match stays the same
    return RegexPiece::Of(builder_.Repeat(*piece.parts[kTiedToNone], repeat->min, repeat->max));
  }

  // nullopt: what follows is none, which a { may be as well.
  absl::StatusOr<std::optional<RegexRepeat>> ParseRepeat() {
    if (cursor_.Skip("*")) return RegexRepeat{.min = 0};
    if (cursor_.Skip("+")) return RegexRepeat{.min = 1};
    if (cursor_.Skip("?")) return RegexRepeat{.min = 0, .max = 1};
    const size_t at = cursor_.at();
    if (!cursor_.Skip("{")) return std::nullopt;
    const std::optional<int64_t> min = TakeCount();
    const bool is_range = cursor_.Skip(",");
    const std::optional<int64_t> max = is_range ? TakeCount() : min;
    if ((!min.has_value() && !is_range) || !cursor_.Skip("}")) {
      cursor_.GoTo(at);
      return std::nullopt;
    }
    if (!min.has_value()) {
      return RegexError(at, "a repeat without its lower count is not supported: write {0,");
    }
    if (*min > kMaxStates || max.value_or(0) > kMaxStates) {
      return RegexError(at, absl::StrCat("more than ", kMaxStates, " repeats are not supported"));
    }
    if (max.has_value() && *max < *min) {
      return RegexError(at, "the counts of a repeat are out of order");
    }
    return RegexRepeat{.min = *min, .max = max};
  }

  // nullopt: no digit. No more than kMaxStates + 1.
  std::optional<int64_t> TakeCount() {
    std::optional<int64_t> count;
    while (!cursor_.is_end() &&
           absl::ascii_isdigit(static_cast<unsigned char>(cursor_.rest()[0]))) {
      const int64_t digit = static_cast<int64_t>(cursor_.Take()) - '0';
      count = std::min<int64_t>(count.value_or(0) * 10 + digit, kMaxStates + 1);
    }
    return count;
  }

  absl::StatusOr<RegexPiece> ParseAtom() {
    const size_t at = cursor_.at();
    if (cursor_.Sees("(")) return ParseGroup();
    if (cursor_.Skip("^")) return Tied(kTiedToBegin, at);
    if (cursor_.Skip("$")) return Tied(kTiedToEnd, at);
    if (cursor_.Skip(".")) return RegexPiece::Of(Character(AllCharactersBut({{'\n', '\n'}})));
    if (cursor_.Sees("[")) {
      ASSIGN_OR_RETURN(const CharacterSet set, ParseRegexClass(cursor_));
      return RegexPiece::Of(Character(set));
    }
    if (cursor_.Sees("\\")) {
      ASSIGN_OR_RETURN(const CharacterSet set, ParseRegexEscape(cursor_, /*is_in_class=*/false));
      return RegexPiece::Of(Character(set));
    }
    const char32_t c = cursor_.Take();
    return RegexPiece::Of(Character({{c, c}}));
  }

  RegexPiece Tied(RegexTies ties, size_t at) {
    RegexPiece piece;
    piece.parts[ties] = builder_.Empty();
    (ties == kTiedToBegin ? piece.begin_at : piece.end_at) = at;
    return piece;
  }

  absl::StatusOr<RegexPiece> ParseGroup() {
    const size_t at = cursor_.at();
    if (++depth_ > kMaxRegexDepth) {
      return RegexError(at, absl::StrCat("groups nest deeper than ", kMaxRegexDepth));
    }
    const absl::Cleanup leave = [this] { --depth_; };
    RETURN_IF_ERROR(SkipGroupOpening());
    ASSIGN_OR_RETURN(RegexPiece inside, ParseAlternatives());
    if (!cursor_.Skip(")")) return RegexError(at, "a ( has no ) behind it");
    return inside;
  }

  absl::Status SkipGroupOpening() {
    const size_t at = cursor_.at();
    cursor_.Skip("(");
    if (!cursor_.Sees("?") || cursor_.Skip("?:")) return absl::OkStatus();
    static constexpr std::pair<std::string_view, const char*> kUnsupported[] = {
        {"?=", "look-ahead (?=...)"},        {"?!", "look-ahead (?!...)"},
        {"?<=", "look-behind (?<=...)"},     {"?<!", "look-behind (?<!...)"},
        {"?>", "an atomic group (?>...)"},   {"?#", "a comment (?#...)"},
        {"?P=", "a backreference (?P=...)"}, {"?P>", "a recursion (?P>...)"},
        {"?(", "a condition (?(...)...)"},
    };
    for (const auto& [opening, name] : kUnsupported) {
      if (cursor_.Sees(opening)) return RegexError(at, absl::StrCat(name, " is not supported"));
    }
    if (cursor_.Skip("?P<") || cursor_.Skip("?<")) return SkipGroupName();
    return RegexError(at, "flags like (?i), and other groups of that kind, are not supported");
  }

  absl::Status SkipGroupName() {
    const size_t at = cursor_.at();
    const std::string_view all = cursor_.rest();
    size_t size = 0;
    while (size < all.size() &&
           (absl::ascii_isalnum(static_cast<unsigned char>(all[size])) || all[size] == '_')) {
      ++size;
    }
    cursor_.GoTo(at + size);
    const bool is_name = size > 0 && !absl::ascii_isdigit(static_cast<unsigned char>(all[0]));
    if (is_name && cursor_.Skip(">")) return absl::OkStatus();
    return RegexError(at, "a group's name is not of ASCII letters, digits and _, or has no >");
  }

  RegexCursor cursor_;
  GrammarBuilder& builder_;
  const RegexOptions& options_;
  int depth_ = 0;
  std::map<std::u32string, Part> characters_;  // by the bounds of their ranges
};

}  // namespace

absl::StatusOr<Part> AddRegex(std::string_view pattern, GrammarBuilder& builder,
                              const RegexOptions& options) {
  if (const size_t at = FindInvalidUtf8(pattern); at != std::string_view::npos) {
    return RegexError(at, "the expression is not UTF-8");
  }
  return RegexParser(pattern, builder, options).Run();
}

}  // namespace lockstep::grammar
