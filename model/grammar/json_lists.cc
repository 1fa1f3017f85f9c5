// JSON's objects and arrays.
#include <algorithm>
#include <limits>
#include <utility>

#include "model/grammar/json_text.h"
#include "model/tokenizer/utf8.h"

namespace lockstep::grammar {
namespace {

using Part = GrammarBuilder::Part;

// Names that share more characters with a member's are not written: parts would lie too deep in
// each other.
constexpr size_t kMaxSharedCharacters = 64;
// Members that may be left out are offered in blocks of so many.
constexpr size_t kMaxOffered = 16;
constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();

std::u32string CodePointsOf(std::string_view text) {
  std::u32string characters;
  while (!text.empty()) {
    const Utf8Unit unit = NextUtf8Unit(text);
    characters.push_back(unit.code_point);
    text.remove_prefix(unit.num_bytes);
  }
  return characters;
}

// All but some, which are in order.
std::vector<CodePointRange> CharactersBut(std::u32string_view characters) {
  std::vector<CodePointRange> ranges;
  char32_t next = 0;
  for (const char32_t character : characters) {
    if (next < character) ranges.push_back({next, character - 1});
    next = character + 1;
  }
  ranges.push_back({next, 0x10FFFF});
  return ranges;
}

// What stands in an object, put together from the last member to the first. What may follow a
// member is the same whichever was written before it, and a rule where it is used more than once,
// so the states are about as many as the members.
class MemberChain {
 public:
  MemberChain(Part comma, GrammarBuilder& builder) : comma_(comma), builder_(builder) {}

  void AddAdditional(Part member, std::optional<int64_t> max) {
    if (max == 0) return;
    const Part more = builder_.Sequence({comma_, member});
    rest_ = {builder_.Repeat(more, 0, max)};
    if (max.has_value()) --*max;
    offered_ = {builder_.Sequence({member, builder_.Repeat(more, 0, max)})};
  }

  // is_shared: the member before it may be left out, so it is offered in more than one place.
  void AddInFront(Part member, bool is_required, bool is_shared) {
    if (is_shared) {
      member = builder_.MakeRule(member);
      rest_ = {builder_.MakeRule(Backwards(rest_))};
    }
    if (is_required) {
      may_end_ = false;
      rest_.push_back(member);  // runs of such are one sequence
      required_ = rest_;
      offered_.clear();
      rest_.push_back(comma_);
      return;
    }
    OfferRequired();
    offered_.push_back(builder_.Sequence({member, Backwards(rest_)}));
    if (offered_.size() > kMaxOffered) offered_ = {builder_.MakeRule(Offered())};
    const Part rest = builder_.Sequence({comma_, Offered()});
    rest_ = {may_end_ ? builder_.Optional(rest) : rest};
  }

  bool may_end() const { return may_end_; }
  // All, of which something is written.
  Part Whole() {
    OfferRequired();
    return Offered();
  }

 private:
  void OfferRequired() {
    if (!required_.empty()) offered_ = {Backwards(required_)};
    required_.clear();
  }
  Part Backwards(const std::vector<Part>& parts) {
    return builder_.Sequence({parts.rbegin(), parts.rend()});
  }
  Part Offered() { return builder_.Choice({offered_.rbegin(), offered_.rend()}); }

  const Part comma_;
  GrammarBuilder& builder_;
  std::vector<Part> rest_;      // what follows when something is written already, backwards
  std::vector<Part> offered_;   // what may be first when nothing is, each with what follows it
  std::vector<Part> required_;  // the only one, if it must be: not joined yet, backwards
  bool may_end_ = true;
};

}  // namespace

GrammarBuilder::Part JsonText::List(char open, Part inside, char close) {
  return builder_.Sequence(
      {builder_.Text({&open, 1}), white_space_, inside, white_space_, builder_.Text({&close, 1})});
}

GrammarBuilder::Part JsonText::EmptyList(char open, char close) {
  return builder_.Sequence({builder_.Text({&open, 1}), white_space_, builder_.Text({&close, 1})});
}

GrammarBuilder::Part JsonText::NameAndValue(Part name, Part value) {
  return builder_.Sequence({name, colon_, value});
}

GrammarBuilder::Part JsonText::ObjectOf(const Object& object) {
  MemberChain chain(comma_, builder_);
  if (object.additional.has_value()) {
    const Part name = NameBut(object.members);
    chain.AddAdditional(builder_.MakeRule(NameAndValue(name, *object.additional)),
                        object.max_additional);
  }
  for (size_t i = object.members.size(); i-- > 0;) {
    const Member& member = object.members[i];
    const Part name = builder_.Text(WrittenPlainly(nlohmann::ordered_json(member.name)));
    chain.AddInFront(NameAndValue(name, member.value), member.is_required,
                     i > 0 && !object.members[i - 1].is_required);
  }
  std::vector<Part> choices;
  if (chain.may_end() && !object.is_never_empty) choices.push_back(EmptyList('{', '}'));
  choices.push_back(List('{', chain.Whole(), '}'));
  return builder_.MakeRule(builder_.Choice(std::move(choices)));
}

GrammarBuilder::Part JsonText::ArrayOf(const Array& array) {
  const int64_t max_items = array.max_items.value_or(kNoEnd);
  const int64_t num_first = std::min(std::ssize(array.first), max_items);
  const bool has_others = array.others.has_value() && max_items > num_first;
  if (max_items < array.min_items || (!has_others && array.min_items > num_first)) {
    return builder_.Choice({});
  }
  // From the last item to the first, each with those that follow it.
  std::optional<Part> items;
  if (has_others) items = OtherItems(array, num_first);
  for (int64_t i = num_first; i-- > 0;) {
    const Part first = array.first[static_cast<size_t>(i)];
    if (!items.has_value()) {
      items = first;
      continue;
    }
    const Part rest = builder_.Sequence({comma_, *items});
    const bool may_end = array.min_items <= i + 1;
    items = builder_.Sequence({first, may_end ? builder_.Optional(rest) : rest});
  }
  std::vector<Part> choices;
  if (array.min_items == 0) choices.push_back(EmptyList('[', ']'));
  if (items.has_value()) choices.push_back(List('[', *items, ']'));
  return builder_.MakeRule(builder_.Choice(std::move(choices)));
}

// At least one, behind so many.
GrammarBuilder::Part JsonText::OtherItems(const Array& array, int64_t num_before) {
  const Part item = builder_.MakeRule(*array.others);
  const Part more = builder_.MakeRule(builder_.Sequence({comma_, item}));
  std::optional<int64_t> max = array.max_items;
  if (max.has_value()) *max -= num_before + 1;
  const int64_t min = std::max<int64_t>(0, array.min_items - num_before - 1);
  return builder_.Sequence({item, builder_.Repeat(more, min, max)});
}

GrammarBuilder::Part JsonText::NameBut(const std::vector<Member>& members) {
  if (members.empty()) return string_;
  std::vector<std::u32string> names;
  for (const Member& member : members) names.push_back(CodePointsOf(member.name));
  std::sort(names.begin(), names.end());
  return Quoted(NameButFrom(names, 0));
}

// sorted: not empty; their first num_read characters are the same.
GrammarBuilder::Part JsonText::NameButFrom(std::span<const std::u32string> sorted,
                                           size_t num_read) {
  std::vector<Part> choices;
  const bool is_name = sorted.front().size() == num_read;
  if (is_name) {
    sorted = sorted.subspan(1);
  } else {
    choices.push_back(builder_.Empty());
  }
  if (num_read == kMaxSharedCharacters) return builder_.Choice(std::move(choices));
  std::u32string next;
  while (!sorted.empty()) {
    const char32_t character = sorted.front()[num_read];
    const auto ends = std::find_if(sorted.begin(), sorted.end(), [&](const std::u32string& name) {
      return name[num_read] != character;
    });
    const auto num_same = static_cast<size_t>(ends - sorted.begin());
    const CodePointRange only = {character, character};
    choices.push_back(builder_.Sequence(
        {Character({&only, 1}), NameButFrom(sorted.first(num_same), num_read + 1)}));
    sorted = sorted.subspan(num_same);
    next.push_back(character);
  }
  const Part other = next.empty() ? any_character_ : Character(CharactersBut(next));
  const Part anything = builder_.Repeat(any_character_, 0, std::nullopt);
  choices.push_back(builder_.Sequence({other, anything}));
  return builder_.Choice(std::move(choices));
}

}  // namespace lockstep::grammar
