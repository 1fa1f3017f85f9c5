// The texts of JSON numbers within bounds, as automata over digits.
//
// Bounds and texts are compared as decimals, exactly. Where a bound is excluded, texts near it are
// kept to 15 digits: of two such, no two are the same double, so who reads them as doubles finds
// none on the bound. Pure functions and one builder's user, which is one thread's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "model/grammar/grammar.h"
#include "nlohmann/json.hpp"

namespace lockstep::grammar {

struct Decimal {
  bool is_negative = false;
  std::string whole = "0";  // digits without zeros in front
  std::string fraction;     // digits without zeros behind

  // A double is the shortest decimal that reads as it.
  static Decimal Of(const nlohmann::ordered_json& number);
};
// Below zero: a is less than b; 0: equal.
int Compare(const Decimal& a, const Decimal& b);

struct NumberBound {
  Decimal value;
  bool is_exclusive = false;
};

struct NumberRange {
  std::optional<NumberBound> lower;
  std::optional<NumberBound> upper;

  // Of two bounds the tighter one is kept.
  void AddLower(NumberBound bound);
  void AddUpper(NumberBound bound);
  bool is_empty() const;
  bool Contains(const Decimal& value) const;
};

class JsonNumbers {
 public:
  using Part = GrammarBuilder::Part;
  static constexpr int kMaxDigits = 18;          // before the point
  static constexpr int kMaxFractionDigits = 20;  // 0.0001 and its like have 20 in a double

  explicit JsonNumbers(GrammarBuilder& builder) : builder_(builder) {}

  // Digits alone. Nothing matches if the range has no integer of at most kMaxDigits. Those without
  // bounds are rules, each made once.
  Part Integer(const NumberRange& range);
  // Without an exponent where there is a bound; all are finite doubles.
  Part Number(const NumberRange& range);

 private:
  // What is left of a bound's digits, for as long as the text's are the same.
  struct Tight {
    std::string_view digits;
    bool is_exclusive = false;
  };
  struct Magnitude {
    int64_t whole = 0;
    std::string fraction;
    bool is_exclusive = false;
  };
  static Magnitude MagnitudeOf(const NumberBound& bound);

  Part AnyNumber();
  Part IntegerWithin(const NumberRange& range);
  Part Exponent(std::string_view largest);
  Part Magnitudes(const Magnitude& low, Magnitude high);
  Part Whole(int64_t low, int64_t high);
  Part FixedDigits(std::optional<std::string_view> low, std::optional<std::string_view> high,
                   size_t num_digits);
  Part Fraction(std::optional<Tight> low, std::optional<Tight> high, int num_digits);
  Part FractionDigits(std::optional<Tight> low, std::optional<Tight> high, int num_digits,
                      bool may_end);

  Part Digit(char first, char last);
  Part Digits(int64_t min, int64_t max) { return builder_.Repeat(Digit('0', '9'), min, max); }
  Part WithSign(Part negative, Part positive);

  GrammarBuilder& builder_;
  std::optional<Part> any_integer_;
  std::optional<Part> any_number_;
};

}  // namespace lockstep::grammar
