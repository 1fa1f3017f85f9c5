#include "model/grammar/plain_text.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "model/grammar/utf8_ranges.h"
#include "model/tokenizer/utf8.h"

namespace lockstep::grammar {
namespace {

constexpr CodePointRange kPlainRanges[] = {
    {0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x7E}, {0x80, 0x10FFFF}};

bool IsPlain(char32_t character) {
  return std::any_of(std::begin(kPlainRanges), std::end(kPlainRanges),
                     [&](const CodePointRange& range) {
                       return range.first <= character && character <= range.last;
                     });
}

// Of more, nobody looks whether all characters lead to some of them: few grammars have such states.
constexpr size_t kMostMet = 64;
// That it may take to find them, as the automaton's steps say.
constexpr int64_t kMostWork = 1 << 18;

void AddNew(std::vector<int32_t>& states, int32_t state) {
  if (std::find(states.begin(), states.end(), state) == states.end()) states.push_back(state);
}

// Where any of the bytes leads from any of the states; false if one leads nowhere, or to too many.
// Adds to the work.
bool Read(TextAutomaton& automaton, std::span<const int32_t> from, ByteRange bytes,
          std::vector<int32_t>& to, int64_t& work) {
  to.clear();
  for (const int32_t state : from) {
    std::optional<size_t> last;
    for (int each = bytes.first; each <= bytes.last; ++each) {
      const auto byte = static_cast<uint8_t>(each);
      const size_t step = automaton.StepOf(state, byte);
      if (step == last) continue;
      last = step;
      const int32_t next = automaton.Next(state, byte);
      work += 1 + automaton.work_of(step);
      if (next == TextAutomaton::kNoState || work > kMostWork) return false;
      AddNew(to, next);
    }
    if (to.size() > kMostMet) return false;
  }
  return true;
}

}  // namespace

std::optional<int32_t> CountPlainCharacters(std::string_view text) {
  int32_t count = 0;
  while (!text.empty()) {
    const Utf8Unit unit = NextUtf8Unit(text);
    if (unit.kind != Utf8Kind::kCharacter || !IsPlain(unit.code_point)) return std::nullopt;
    text.remove_prefix(unit.num_bytes);
    ++count;
  }
  return count;
}

PlainReach::PlainReach() : sequences_(Utf8Sequences(kPlainRanges)) {}

const PlainReach::Successors& PlainReach::Find(TextAutomaton& automaton, int32_t state) {
  const auto index = static_cast<size_t>(state);
  if (index >= successors_.size()) successors_.resize(index + 1);
  Successors& found = successors_[index];
  if (found.is_known) return found;
  found.is_known = found.is_complete = true;
  std::vector<int32_t> from;
  std::vector<int32_t> to;
  for (const std::vector<ByteRange>& sequence : sequences_) {
    to.assign(1, state);
    for (size_t i = 0; i < sequence.size() && found.is_complete; ++i) {
      from.swap(to);
      found.is_complete = Read(automaton, from, sequence[i], to, found.work);
    }
    if (!found.is_complete) break;
    for (const int32_t next : to) AddNew(found.states, next);
    if (found.states.size() > kMostMet) found.is_complete = false;
  }
  return found;
}

int32_t PlainReach::Of(TextAutomaton& automaton, int32_t state, int32_t most) {
  std::vector<int32_t> met = {state};
  size_t first = 0;  // of those met last
  int64_t work = 0;
  for (int32_t count = 0; count < most; ++count) {
    const size_t last = met.size();
    if (first == last) return kAnyNumber;  // nothing new came
    for (size_t i = first; i < last; ++i) {
      const Successors& next = Find(automaton, met[i]);
      work += next.work;
      if (!next.is_complete || work > kMostWork) return count;
      for (const int32_t each : next.states) AddNew(met, each);
    }
    if (met.size() > kMostMet) return count;
    first = last;
  }
  return first == met.size() ? kAnyNumber : most;
}

}  // namespace lockstep::grammar
