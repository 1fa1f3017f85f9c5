// The texts of JSON: what is alike in all of them, as parts of one grammar.
//
// White space is where writers of JSON put it: behind commas and within brackets nothing, one
// space, or a new line and up to 32 spaces or tabs; behind colons nothing or one space. Elsewhere,
// or without end, weak models would write it for lack of better. Strings may have any escape, but
// no half of a surrogate pair.
// Used by one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/grammar/grammar.h"
#include "nlohmann/json.hpp"

namespace lockstep::grammar {

class JsonText {
 public:
  using Part = GrammarBuilder::Part;
  struct Member {
    std::string name;
    Part value = 0;
    bool is_required = false;
  };
  // Names are written in this order. One that is not required may be left out. Additional ones may
  // be written twice: who reads them takes the last, or all, and each is valid.
  struct Object {
    std::vector<Member> members = {};
    std::optional<Part> additional =
        std::nullopt;  // the value of any other name, behind the members
    bool is_never_empty = false;
    std::optional<int64_t> max_additional = std::nullopt;
  };
  // As many of the first as there are, in order, then any number of the others.
  struct Array {
    std::vector<Part> first = {};
    std::optional<Part> others = std::nullopt;
    int64_t min_items = 0;
    std::optional<int64_t> max_items = std::nullopt;
  };
  // As many parts lie in each other as Array::first has items.
  static constexpr size_t kMaxFirstItems = 256;

  explicit JsonText(GrammarBuilder& builder);

  // Any of their kind.
  Part string() const { return string_; }
  Part value() const { return value_; }
  Part object() const { return object_; }

  Part StringOf(int64_t min_characters, std::optional<int64_t> max_characters);
  // These are rules, so that what lies in them is no deeper part for those around them.
  Part ObjectOf(const Object& object);
  Part ArrayOf(const Array& array);
  // One of these, each as it is written plainly, once.
  Part OneOf(const std::vector<const nlohmann::ordered_json*>& values);

  // One character of these within a string; they are in order and apart. What need not be escaped
  // is not, unless it may be any.
  Part Character(std::span<const CodePointRange> ranges);
  Part Quoted(Part characters);
  // As JSON is commonly written: what need not be escaped is not.
  static std::string WrittenPlainly(const nlohmann::ordered_json& value);

 private:
  Part AnyCharacter();
  Part Escape();
  Part ControlEscape(std::span<const CodePointRange> ranges);
  Part Value(const nlohmann::ordered_json& value);
  Part List(char open, Part inside, char close);
  Part EmptyList(char open, char close);
  Part OtherItems(const Array& array, int64_t num_before);
  Part NameAndValue(Part name, Part value);
  // A name that is none of these, however it is written.
  Part NameBut(const std::vector<Member>& members);
  Part NameButFrom(std::span<const std::u32string> sorted, size_t num_read);

  GrammarBuilder& builder_;
  std::map<std::u32string, Part> characters_;  // by the bounds of their ranges
  std::map<std::pair<int64_t, std::optional<int64_t>>, Part> strings_;
  const Part white_space_;
  const Part comma_;  // this and the next: with the white space behind it
  const Part colon_;
  const Part any_character_;
  const Part string_;
  const GrammarBuilder::Rule value_rule_;
  const Part value_;
  const Part object_;
};

}  // namespace lockstep::grammar
