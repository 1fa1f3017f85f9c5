// Which KV blocks hold which prefixes: a tree of full blocks, each named by its parent and its
// tokens, rooted in a salt. Called by the engine's thread only.
//
// Invariant: a lookup never returns a block of other tokens. The 64-bit hash only finds a
// candidate; its parent, its tokens and its salt are then compared, so a collision costs a miss and
// nothing else. (vLLM's automatic prefix caching trusts the hash.) A block is registered once the
// plan that computes it was issued and its tokens are known: ranks execute plans in order, so any
// later plan may read it.
//
// With blocks of the host's memory, every named block gets a copy there (TakeOffloads), by which
// its prefix is still found when the block has gone to others; who uses it then has it copied back
// (Restore). A copy is as recently used as its block: when the block's last holder leaves. One that
// gave way to others is then made again, where the host has more blocks than the cache; else most
// copies would be made again all the time, of blocks that are still there.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "runtime/engine/block_pool.h"
#include "runtime/engine/host_blocks.h"
#include "runtime/engine/step_plan.h"

namespace lockstep::engine {

class PrefixCache {
 public:
  // A node's number is never used again, so a child of an evicted block is unreachable rather than
  // wrong.
  using Node = uint64_t;
  static constexpr Node kRoot = 0;
  static constexpr int32_t kNoBlock = -1;

  // Blocks are marked in the pool while they are registered here. The pool must outlive the cache,
  // report evictions to Evict and ask Keeps. num_host_blocks >= 0. hash_mask: tests narrow the hash
  // to make collisions common.
  PrefixCache(BlockPool& pool, int block_size, int64_t num_host_blocks = 0,
              uint64_t hash_mask = ~uint64_t{0});
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  struct Match {
    std::vector<int32_t> blocks;       // kNoBlock: only the host has it
    std::vector<int32_t> host_blocks;  // of the blocks; kNoBlock: it has not
    std::vector<Node> nodes;           // of the blocks; each is greater than the one before
    int64_t size() const { return static_cast<int64_t>(nodes.size()); }
    int64_t num_to_restore() const;
    Node last() const { return nodes.empty() ? kRoot : nodes.back(); }
  };
  // The longest chain of blocks that holds the first blocks of `tokens`, at most max_blocks. Takes
  // no references.
  Match Lookup(std::string_view salt, std::span<const int32_t> tokens, int64_t max_blocks) const;

  // Names the full block `tokens` that follows `parent`; `block` holds it and is held now. If
  // another block holds it already, that one keeps the name, and while this one is held, too, it is
  // a twin: to have the name when the other is evicted. Returns the node to continue from.
  Node Register(std::string_view salt, Node parent, std::span<const int32_t> tokens, int32_t block);

  void Evict(int32_t block);  // forgets it, and hands on its name; the pool unmarks
  bool Keeps(int32_t block);  // nobody holds it any more: false of a twin, which is forgotten
  void Clear();               // forgets and unmarks all

  // Of named blocks without a copy, at most so many, each with a block of the host's that is to
  // have one by the next plan. The plan that writes them must have been issued.
  std::vector<BlockCopy> TakeOffloads(int64_t most);
  // What only the host has will be copied to `block`, which is held now, by the next plan.
  void Restore(int32_t host_block, int32_t block);
  // From now on; nothing is named now.
  void SetHostBlocks(int64_t num_host_blocks);
  // Null: there are none.
  const HostBlocks* host_blocks() const { return host_blocks_ ? &*host_blocks_ : nullptr; }
  void CheckInvariants() const;  // counts everything, for tests

 private:
  struct Entry {
    int32_t block = kNoBlock;
    int32_t host_block = kNoBlock;  // one of the two at least
    Node node = kRoot;
    Node parent = kRoot;
    std::string salt;  // of a first block; empty below
    std::vector<int32_t> tokens;
    std::vector<int32_t> twins = {};  // held blocks of the same prefix
  };

  uint64_t Hash(std::string_view salt, Node parent, std::span<const int32_t> tokens) const;
  const Entry* Find(uint64_t hash, std::string_view salt, Node parent,
                    std::span<const int32_t> tokens) const;
  void Mark(int32_t block, uint64_t hash);
  void WantOffload(int32_t block);
  void ForgetHostBlock(uint64_t hash);

  BlockPool& pool_;
  const int block_size_;
  const uint64_t hash_mask_;
  absl::flat_hash_map<uint64_t, Entry> entries_;
  absl::flat_hash_map<int32_t, uint64_t> hash_of_block_;
  Node next_node_ = 1;

  std::optional<HostBlocks> host_blocks_;
  std::vector<int32_t> to_offload_;       // no block twice; some may have lost their names
  std::vector<bool> is_to_be_offloaded_;  // by block
};

}  // namespace lockstep::engine
