// Liveness by iteration over blocks of instructions, then a linear scan over what each register's
// life spans (Poletto and Sarkar, "Linear scan register allocation", 1999).
#include "tests/support/cuda_emulation/compiled/frame_layout.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>

namespace lockstep::cuda_emulation::ptx {

namespace {

// A set of registers.
class Set {
 public:
  explicit Set(size_t size) : bits_(size / 64 + 1) {}
  bool Has(int i) const { return (bits_[i / 64] >> (i % 64) & 1) != 0; }
  void Add(int i) { bits_[i / 64] |= uint64_t{1} << (i % 64); }
  // Adds what is in `other` but not in `without`. Did that change it?
  bool AddAll(const Set& other, const Set& without) {
    bool changed = false;
    for (size_t w = 0; w < bits_.size(); ++w) {
      const uint64_t all = bits_[w] | (other.bits_[w] & ~without.bits_[w]);
      changed |= all != bits_[w];
      bits_[w] = all;
    }
    return changed;
  }

 private:
  std::vector<uint64_t> bits_;
};

// Instructions that are executed one after the other: [begin, end).
struct Block {
  Block(int begin, size_t num_registers)
      : begin(begin), reads(num_registers), writes(num_registers), live(num_registers) {}
  int begin;
  int end = 0;
  Set reads;   // before they are written here
  Set writes;  // whatever its guard
  Set live;    // as it begins: some path from here reads them before it writes them
  std::array<int, 2> next = {-1, -1};
};

class Lives {
 public:
  Lives(const std::vector<Range>& registers, const Program& program)
      : program_(program), of_word_(program.frame.size(), -1), spans_(registers.size()) {
    for (size_t i = 0; i < registers.size(); ++i)
      of_word_[registers[i].begin] = static_cast<int>(i);
    FindBlocks();
    for (Block& block : blocks_) NoteAccesses(block);
    FindLive();
    for (const Block& block : blocks_) NoteLive(block);
  }

  // Of instructions, both included; {-1, -1} of a register that nothing names.
  struct Span {
    int begin = -1;
    int end = -1;
  };
  const std::vector<Span>& spans() const { return spans_; }

 private:
  void FindBlocks() {
    const auto num_instructions = static_cast<int>(program_.code.size());
    std::vector<bool> begins(num_instructions + 1, false);
    if (num_instructions != 0) begins[0] = true;
    for (int i = 0; i < num_instructions; ++i) {
      const Instruction& instruction = program_.code[i];
      if (instruction.flow == Flow::kNext) continue;
      begins[i + 1] = true;
      if (instruction.flow == Flow::kBranch) begins[instruction.target] = true;
    }
    std::vector<int> block_at(num_instructions + 1, -1);
    for (int i = 0; i < num_instructions; ++i) {
      if (begins[i]) blocks_.emplace_back(i, spans_.size());
      block_at[i] = static_cast<int>(blocks_.size()) - 1;
      blocks_.back().end = i + 1;
    }
    for (Block& block : blocks_) {
      const Instruction& last = program_.code[block.end - 1];
      if (last.flow == Flow::kNext || last.guard >= 0) block.next[0] = block_at[block.end];
      if (last.flow == Flow::kBranch) block.next[1] = block_at[last.target];
    }
  }

  // Calls of(register, is_written) for what the instruction reads, then for what it writes.
  template <typename Of>
  void ForEachAccess(const Instruction& instruction, const Of& of) const {
    const auto visit = [&](int word, bool is_written) {
      if (word >= 0 && of_word_[word] >= 0) of(of_word_[word], is_written);
    };
    const int in_list = instruction.begins_with_list ? instruction.num_results : 0;
    const int in_r = instruction.begins_with_list ? 0 : instruction.num_results;
    visit(instruction.guard, false);
    for (int k = in_r; k < instruction.num_r; ++k) visit(instruction.r[k], false);
    for (size_t k = in_list; k < instruction.list.size(); ++k) visit(instruction.list[k], false);
    for (int k = 0; k < in_r; ++k) visit(instruction.r[k], true);
    for (int k = 0; k < in_list; ++k) visit(instruction.list[k], true);
  }

  void NoteAccesses(Block& block) {
    for (int i = block.begin; i < block.end; ++i) {
      const Instruction& instruction = program_.code[i];
      ForEachAccess(instruction, [&](int r, bool is_written) {
        Extend(r, i);
        if (is_written) {
          if (instruction.guard < 0) block.writes.Add(r);
        } else if (!block.writes.Has(r)) {
          block.reads.Add(r);
        }
      });
    }
  }

  void FindLive() {
    const Set none(spans_.size());
    for (Block& block : blocks_) block.live = block.reads;
    for (bool changed = true; changed;) {
      changed = false;
      for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
        for (const int next : block->next) {
          if (next >= 0) changed |= block->live.AddAll(blocks_[next].live, block->writes);
        }
      }
    }
  }

  void NoteLive(const Block& block) {
    for (int r = 0; r < static_cast<int>(spans_.size()); ++r) {
      if (block.live.Has(r)) Extend(r, block.begin);
      for (const int next : block.next) {
        if (next >= 0 && blocks_[next].live.Has(r)) Extend(r, block.end - 1);
      }
    }
  }

  void Extend(int r, int instruction) {
    Span& span = spans_[r];
    span.begin = span.begin < 0 ? instruction : std::min(span.begin, instruction);
    span.end = std::max(span.end, instruction);
  }

  const Program& program_;
  std::vector<int> of_word_;  // of a register's first word: its number, otherwise -1
  std::vector<Span> spans_;
  std::vector<Block> blocks_;
};

// Gives words to spans that come by their beginning.
class Words {
 public:
  explicit Words(int begin) : end_(begin) {}

  // A register's last instruction may read what another's first one writes: they do not share.
  int Take(const Lives::Span& span, int count) {
    while (!taken_.empty() && taken_.top().until < span.begin) {
      const Taken& taken = taken_.top();
      spare_[taken.count - 1].push_back(taken.word);
      taken_.pop();
    }
    std::vector<int>& spare = spare_[count - 1];
    int word = end_;
    if (spare.empty()) {
      end_ += count;
    } else {
      word = spare.back();
      spare.pop_back();
    }
    taken_.push({span.end, word, count});
    return word;
  }
  int end() const { return end_; }

 private:
  struct Taken {
    int until;
    int word;
    int count;
    bool operator>(const Taken& other) const { return until > other.until; }
  };
  int end_;
  std::array<std::vector<int>, 2> spare_;  // of one word, of two
  std::priority_queue<Taken, std::vector<Taken>, std::greater<>> taken_;
};

// Where each word of the frame comes to lie: registers share, what follows them keeps its order.
std::vector<int> NewPlaces(const std::vector<Range>& registers, const Lives& lives, int first,
                           const Program& program) {
  std::vector<int> order;
  for (int r = 0; r < static_cast<int>(registers.size()); ++r) {
    if (lives.spans()[r].begin >= 0) order.push_back(r);
  }
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return lives.spans()[a].begin < lives.spans()[b].begin; });
  std::vector<int> places(program.frame.size(), -1);
  Words words(first);
  for (const int r : order) {
    const int word = words.Take(lives.spans()[r], registers[r].count);
    for (int k = 0; k < registers[r].count; ++k) places[registers[r].begin + k] = word + k;
  }
  std::vector<bool> is_register(program.frame.size(), false);
  for (const Range& r : registers) std::fill_n(is_register.begin() + r.begin, r.count, true);
  int end = words.end();
  for (int word = 0; word < static_cast<int>(places.size()); ++word) {
    if (!is_register[word]) places[word] = word < first ? word : end++;
  }
  return places;
}

void Move(const std::vector<int>& places, Program& program) {
  const auto move = [&](int& word) {
    if (word >= 0) word = places[word];
  };
  for (Instruction& instruction : program.code) {
    move(instruction.guard);
    for (int& word : instruction.r) move(word);
    for (int& word : instruction.list) move(word);
  }
  std::vector<uint32_t> frame(*std::max_element(places.begin(), places.end()) + 1);
  for (size_t word = 0; word < places.size(); ++word) {
    if (places[word] >= 0) frame[places[word]] = program.frame[word];
  }
  program.frame = std::move(frame);
}

}  // namespace

void ShareWords(const std::vector<Range>& registers, Program& program) {
  if (registers.empty()) return;
  const Lives lives(registers, program);
  Move(NewPlaces(registers, lives, registers.front().begin, program), program);
}

}  // namespace lockstep::cuda_emulation::ptx
