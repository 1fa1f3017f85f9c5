#include "model/grammar/json_numbers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"

namespace lockstep::grammar {
namespace {

constexpr int64_t kLargestWhole = 999'999'999'999'999'999;  // kMaxDigits nines
constexpr int kExactDigits = 15;                            // that every double keeps apart
// 18 digits or one, and an exponent of 10: less than 1.79e308, the largest double.
constexpr std::string_view kLargestExponent = "289";
constexpr std::string_view kLargestScientificExponent = "307";

int CompareMagnitudes(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (a.whole != b.whole) return a.whole < b.whole ? -1 : 1;
  return a.fraction.compare(b.fraction);
}

bool IsZero(const Decimal& value) { return value.whole == "0" && value.fraction.empty(); }

bool IsAll(std::string_view digits, char digit) {
  return digits.find_first_not_of(digit) == std::string_view::npos;
}

int NumDigits(int64_t whole) { return static_cast<int>(std::to_string(whole).size()); }

// Whole parts beyond kMaxDigits are all alike: no text has them.
int64_t WholeOf(const Decimal& value) {
  int64_t whole = 0;
  const bool fits = value.whole.size() <= JsonNumbers::kMaxDigits;
  return fits && absl::SimpleAtoi(value.whole, &whole) ? whole : kLargestWhole + 1;
}

// The least integer that is not below the bound.
int64_t LeastInteger(const NumberBound& bound) {
  const int64_t whole = WholeOf(bound.value);
  const bool is_whole = bound.value.fraction.empty();
  if (bound.value.is_negative) return is_whole && bound.is_exclusive ? -whole + 1 : -whole;
  return is_whole && !bound.is_exclusive ? whole : whole + 1;
}

int64_t GreatestInteger(NumberBound bound) {
  bound.value.is_negative = !bound.value.is_negative;
  return -LeastInteger(bound);
}

}  // namespace

Decimal Decimal::Of(const nlohmann::ordered_json& number) {
  std::string text;
  if (number.is_number_float()) {
    std::array<char, 400> buffer;  // the longest has 1 + 1 + 1 + 324 + 17 characters
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(),
                                   number.get<double>(), std::chars_format::fixed);
    text.assign(buffer.data(), end.ptr);
  } else {
    text = number.dump();
  }
  Decimal decimal;
  const size_t begin = text[0] == '-' ? 1 : 0;
  const size_t point = std::min(text.find('.'), text.size());
  decimal.whole = text.substr(begin, point - begin);
  if (point < text.size()) decimal.fraction = text.substr(point + 1);
  decimal.fraction.erase(decimal.fraction.find_last_not_of('0') + 1);
  decimal.is_negative = begin == 1 && !IsZero(decimal);
  return decimal;
}

int Compare(const Decimal& a, const Decimal& b) {
  if (a.is_negative != b.is_negative) return a.is_negative ? -1 : 1;
  return a.is_negative ? CompareMagnitudes(b, a) : CompareMagnitudes(a, b);
}

void NumberRange::AddLower(NumberBound bound) {
  const int order = lower.has_value() ? Compare(bound.value, lower->value) : 1;
  if (order > 0 || (order == 0 && bound.is_exclusive)) lower = std::move(bound);
}

void NumberRange::AddUpper(NumberBound bound) {
  const int order = upper.has_value() ? Compare(bound.value, upper->value) : -1;
  if (order < 0 || (order == 0 && bound.is_exclusive)) upper = std::move(bound);
}

bool NumberRange::is_empty() const {
  if (!lower.has_value() || !upper.has_value()) return false;
  const int order = Compare(lower->value, upper->value);
  return order > 0 || (order == 0 && (lower->is_exclusive || upper->is_exclusive));
}

bool NumberRange::Contains(const Decimal& value) const {
  if (lower.has_value()) {
    const int order = Compare(value, lower->value);
    if (order < 0 || (order == 0 && lower->is_exclusive)) return false;
  }
  if (!upper.has_value()) return true;
  const int order = Compare(value, upper->value);
  return order < 0 || (order == 0 && !upper->is_exclusive);
}

GrammarBuilder::Part JsonNumbers::Digit(char first, char last) {
  const ByteRange range = {static_cast<uint8_t>(first), static_cast<uint8_t>(last)};
  return builder_.Byte({&range, 1});
}

GrammarBuilder::Part JsonNumbers::WithSign(Part negative, Part positive) {
  return builder_.Choice({builder_.Sequence({builder_.Text("-"), negative}), positive});
}

GrammarBuilder::Part JsonNumbers::Integer(const NumberRange& range) {
  if (range.lower.has_value() || range.upper.has_value()) return IntegerWithin(range);
  if (!any_integer_.has_value()) any_integer_ = builder_.MakeRule(IntegerWithin(range));
  return *any_integer_;
}

GrammarBuilder::Part JsonNumbers::IntegerWithin(const NumberRange& range) {
  const int64_t low = std::max(
      range.lower.has_value() ? LeastInteger(*range.lower) : -kLargestWhole, -kLargestWhole);
  const int64_t high = std::min(
      range.upper.has_value() ? GreatestInteger(*range.upper) : kLargestWhole, kLargestWhole);
  return WithSign(Whole(std::max<int64_t>(1, -high), -low), Whole(std::max<int64_t>(0, low), high));
}

GrammarBuilder::Part JsonNumbers::Number(const NumberRange& range) {
  if (!range.lower.has_value() && !range.upper.has_value()) {
    if (!any_number_.has_value()) any_number_ = builder_.MakeRule(AnyNumber());
    return *any_number_;
  }
  if (range.is_empty()) return builder_.Choice({});
  const Magnitude end = {.whole = kLargestWhole + 1, .fraction = "", .is_exclusive = false};
  const Magnitude low = range.lower.has_value() ? MagnitudeOf(*range.lower) : end;
  const Magnitude high = range.upper.has_value() ? MagnitudeOf(*range.upper) : end;
  const bool has_negative = !range.lower.has_value() || range.lower->value.is_negative;
  const bool has_positive = !range.upper.has_value() || !range.upper->value.is_negative;
  // Where a bound is zero or beyond, counted from the other, magnitudes begin at it.
  const bool ends_below_zero =
      range.upper.has_value() && (range.upper->value.is_negative || IsZero(range.upper->value));
  const Part negative =
      has_negative ? Magnitudes(ends_below_zero ? high : Magnitude(), low) : builder_.Choice({});
  const Part positive =
      has_positive ? Magnitudes(has_negative ? Magnitude() : low, high) : builder_.Choice({});
  return WithSign(negative, positive);
}

JsonNumbers::Magnitude JsonNumbers::MagnitudeOf(const NumberBound& bound) {
  return {.whole = WholeOf(bound.value),
          .fraction = bound.value.fraction,
          .is_exclusive = bound.is_exclusive};
}

GrammarBuilder::Part JsonNumbers::AnyNumber() {
  const Part fraction = Fraction(std::nullopt, std::nullopt, kMaxFractionDigits);
  const Part plain =
      builder_.Sequence({Whole(0, kLargestWhole), fraction, Exponent(kLargestExponent)});
  const Part scientific =
      builder_.Sequence({Digit('0', '9'), fraction, Exponent(kLargestScientificExponent)});
  return builder_.Sequence(
      {builder_.Optional(builder_.Text("-")), builder_.Choice({plain, scientific})});
}

// Or nothing. Below zero it is no larger than above.
GrammarBuilder::Part JsonNumbers::Exponent(std::string_view largest) {
  constexpr ByteRange kLetters[] = {{'E', 'E'}, {'e', 'e'}};
  constexpr ByteRange kSigns[] = {{'+', '+'}, {'-', '-'}};
  const Part digits =
      builder_.Choice({Digits(1, 2), FixedDigits(std::nullopt, largest, largest.size())});
  return builder_.Optional(builder_.Sequence(
      {builder_.Byte(kLetters), builder_.Optional(builder_.Byte(kSigns)), digits}));
}

// By the part before the point: low's, high's, and all between. Where a bound is excluded, the one
// with its own whole part is kept to few digits, and where nothing is behind an upper bound's
// point the one below it, whose fractions come near. What is between is apart from the bounds.
GrammarBuilder::Part JsonNumbers::Magnitudes(const Magnitude& low, Magnitude high) {
  if (low.whole > high.whole || low.whole > kLargestWhole) return builder_.Choice({});
  const auto near = [](bool is_exclusive, int64_t whole) {
    return is_exclusive ? std::max(0, kExactDigits - NumDigits(whole)) : kMaxFractionDigits;
  };
  const int low_digits = near(low.is_exclusive, low.whole);
  const int high_digits = near(high.is_exclusive, high.whole);
  std::optional<Tight> above = Tight{low.fraction, low.is_exclusive};
  std::optional<Tight> below = Tight{high.fraction, high.is_exclusive};
  if (high.whole > low.whole && high.is_exclusive && high.fraction.empty()) {
    --high.whole;  // all of whose fractions are below the bound
    below.reset();
  }
  const auto part = [&](int64_t whole, const std::optional<Tight>& lower,
                        const std::optional<Tight>& upper, int num_digits) {
    return builder_.Sequence(
        {builder_.Text(std::to_string(whole)), Fraction(lower, upper, num_digits)});
  };
  if (low.whole == high.whole) {
    return part(low.whole, above, below, std::min(low_digits, high_digits));
  }
  const Part between =
      builder_.Sequence({Whole(low.whole + 1, std::min(high.whole - 1, kLargestWhole)),
                         Fraction(std::nullopt, std::nullopt, kMaxFractionDigits)});
  std::vector<Part> choices = {part(low.whole, above, std::nullopt, low_digits), between};
  if (high.whole <= kLargestWhole) {
    choices.push_back(part(high.whole, std::nullopt, below, high_digits));
  }
  return builder_.Choice(std::move(choices));
}

// 0 <= low. By numbers of digits: those of low, those of high, and the ones between.
GrammarBuilder::Part JsonNumbers::Whole(int64_t low, int64_t high) {
  if (low > high) return builder_.Choice({});
  if (low == 0 && high > 9) return builder_.Choice({builder_.Text("0"), Whole(1, high)});
  const std::string first = std::to_string(low);
  const std::string last = std::to_string(high);
  if (first.size() == last.size()) return FixedDigits(first, last, last.size());
  const bool runs_from_first = IsAll(std::string_view(first).substr(1), '0') && first[0] == '1';
  const bool runs_to_last = IsAll(last, '9');
  const int64_t shortest = std::ssize(first) + (runs_from_first ? 0 : 1);
  const int64_t longest = std::ssize(last) - (runs_to_last ? 0 : 1);
  std::vector<Part> choices;
  if (!runs_from_first) choices.push_back(FixedDigits(first, std::nullopt, first.size()));
  if (shortest <= longest) {
    choices.push_back(builder_.Sequence({Digit('1', '9'), Digits(shortest - 1, longest - 1)}));
  }
  if (!runs_to_last) {
    const std::string least = "1" + std::string(last.size() - 1, '0');
    choices.push_back(FixedDigits(least, last, last.size()));
  }
  return builder_.Choice(std::move(choices));
}

// So many digits, which are no less than low's and no more than high's where those are given.
GrammarBuilder::Part JsonNumbers::FixedDigits(std::optional<std::string_view> low,
                                              std::optional<std::string_view> high,
                                              size_t num_digits) {
  if (low.has_value() && IsAll(*low, '0')) low.reset();
  if (high.has_value() && IsAll(*high, '9')) high.reset();
  if (!low.has_value() && !high.has_value()) {
    return Digits(static_cast<int64_t>(num_digits), static_cast<int64_t>(num_digits));
  }
  char first = low.has_value() ? (*low)[0] : '0';
  char last = high.has_value() ? (*high)[0] : '9';
  if (low.has_value()) low->remove_prefix(1);
  if (high.has_value()) high->remove_prefix(1);
  const size_t num_left = num_digits - 1;
  if (first == last) {
    return builder_.Sequence({Digit(first, first), FixedDigits(low, high, num_left)});
  }
  std::vector<Part> choices;
  if (low.has_value() && !IsAll(*low, '0')) {
    choices.push_back(
        builder_.Sequence({Digit(first, first), FixedDigits(low, std::nullopt, num_left)}));
    ++first;
  }
  if (high.has_value() && !IsAll(*high, '9')) {
    choices.push_back(
        builder_.Sequence({Digit(last, last), FixedDigits(std::nullopt, high, num_left)}));
    --last;
  }
  if (first <= last) {
    choices.push_back(
        builder_.Sequence({Digit(first, last), FixedDigits(std::nullopt, std::nullopt, num_left)}));
  }
  return builder_.Choice(std::move(choices));
}

// Nothing, or a point and at least one digit.
GrammarBuilder::Part JsonNumbers::Fraction(std::optional<Tight> low, std::optional<Tight> high,
                                           int num_digits) {
  const bool may_be_none = (!low.has_value() || (low->digits.empty() && !low->is_exclusive)) &&
                           (!high.has_value() || !high->digits.empty() || !high->is_exclusive);
  const Part digits = builder_.Sequence(
      {builder_.Text("."), FractionDigits(low, high, num_digits, /*may_end=*/false)});
  return may_be_none ? builder_.Optional(digits) : digits;
}

// Bounds' digits go on with zeros; low's are not above high's.
GrammarBuilder::Part JsonNumbers::FractionDigits(std::optional<Tight> low,
                                                 std::optional<Tight> high, int num_digits,
                                                 bool may_end) {
  if (low.has_value() && low->digits.empty() && !low->is_exclusive) low.reset();
  if (high.has_value() && high->digits.empty() && high->is_exclusive) return builder_.Choice({});
  std::vector<Part> choices;
  if (may_end && !low.has_value()) choices.push_back(builder_.Empty());
  if (num_digits == 0) return builder_.Choice(std::move(choices));
  if (!low.has_value() && !high.has_value()) return Digits(may_end ? 0 : 1, num_digits);
  const auto take = [](std::optional<Tight>& tight, char loose) {
    if (!tight.has_value()) return loose;
    if (tight->digits.empty()) return '0';
    const char digit = tight->digits[0];
    tight->digits.remove_prefix(1);
    return digit;
  };
  char first = take(low, '0');
  char last = take(high, '9');
  const auto add = [&](char from, char to, std::optional<Tight> lower, std::optional<Tight> upper) {
    if (from > to) return;
    choices.push_back(builder_.Sequence(
        {Digit(from, to), FractionDigits(lower, upper, num_digits - 1, /*may_end=*/true)}));
  };
  if (first == last) {
    add(first, first, low, high);
    return builder_.Choice(std::move(choices));
  }
  if (low.has_value()) add(first, first, low, std::nullopt);
  if (high.has_value()) add(last, last, std::nullopt, high);
  add(static_cast<char>(first + (low.has_value() ? 1 : 0)),
      static_cast<char>(last - (high.has_value() ? 1 : 0)), std::nullopt, std::nullopt);
  return builder_.Choice(std::move(choices));
}

}  // namespace lockstep::grammar
