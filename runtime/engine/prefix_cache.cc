#include "runtime/engine/prefix_cache.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "runtime/engine/mix.h"

namespace lockstep::engine {

uint64_t PrefixCache::Hash(std::string_view salt, Node parent,
                           std::span<const int32_t> tokens) const {
  uint64_t hash = Mix(parent, salt.size());
  for (char c : salt) hash = Mix(hash, static_cast<unsigned char>(c));
  for (int32_t token : tokens) hash = Mix(hash, static_cast<uint32_t>(token));
  return hash & hash_mask_;
}

const PrefixCache::Entry* PrefixCache::Find(uint64_t hash, std::string_view salt, Node parent,
                                            std::span<const int32_t> tokens) const {
  const auto it = entries_.find(hash);
  if (it == entries_.end()) return nullptr;
  const Entry& entry = it->second;
  const bool same =
      entry.parent == parent && entry.salt == salt &&
      std::equal(entry.tokens.begin(), entry.tokens.end(), tokens.begin(), tokens.end());
  return same ? &entry : nullptr;
}

PrefixCache::Match PrefixCache::Lookup(std::string_view salt, std::span<const int32_t> tokens,
                                       int64_t max_blocks) const {
  Match match;
  const int64_t num_full = static_cast<int64_t>(tokens.size()) / block_size_;
  for (int64_t i = 0; i < std::min(num_full, max_blocks); ++i) {
    const auto block_tokens = tokens.subspan(i * block_size_, block_size_);
    const Node parent = match.last();
    const Entry* entry = Find(Hash(salt, parent, block_tokens), salt, parent, block_tokens);
    if (entry == nullptr) break;
    match.blocks.push_back(entry->block);
    match.nodes.push_back(entry->node);
    salt = {};  // named once, at the root of the chain
  }
  return match;
}

PrefixCache::Node PrefixCache::Register(std::string_view salt, Node parent,
                                        std::span<const int32_t> tokens, int32_t block) {
  LS_CHECK_EQ(static_cast<int>(tokens.size()), block_size_);
  if (parent != kRoot) salt = {};
  const uint64_t hash = Hash(salt, parent, tokens);
  if (const Entry* entry = Find(hash, salt, parent, tokens)) {
    if (entry->block != block) {
      entries_.at(hash).twins.push_back(block);
      Mark(block, hash);
    }
    return entry->node;
  }
  const Node node = next_node_++;
  Entry entry{block, node, parent, std::string(salt), {tokens.begin(), tokens.end()}};
  // On a true collision the newcomer stays unnamed; its children hang from a node that nobody
  // finds.
  if (!entries_.try_emplace(hash, std::move(entry)).second) return node;
  Mark(block, hash);
  return node;
}

void PrefixCache::Mark(int32_t block, uint64_t hash) {
  LS_CHECK(hash_of_block_.try_emplace(block, hash).second) << "block " << block;
  pool_.Mark(block);
}

void PrefixCache::Evict(int32_t block) {
  const auto it = hash_of_block_.find(block);
  LS_CHECK(it != hash_of_block_.end()) << "block " << block;
  const auto entry = entries_.find(it->second);
  hash_of_block_.erase(it);
  if (std::vector<int32_t>& twins = entry->second.twins; !twins.empty()) {
    entry->second.block = twins.back();
    twins.pop_back();
  } else {
    entries_.erase(entry);
  }
}

bool PrefixCache::Keeps(int32_t block) {
  const auto it = hash_of_block_.find(block);
  LS_CHECK(it != hash_of_block_.end()) << "block " << block;
  Entry& entry = entries_.at(it->second);
  if (entry.block == block) return true;
  std::erase(entry.twins, block);
  hash_of_block_.erase(it);
  return false;
}

void PrefixCache::Clear() {
  std::vector<int32_t> blocks;
  for (const auto& [block, hash] : hash_of_block_) blocks.push_back(block);
  std::sort(blocks.begin(), blocks.end());  // the map's order is random; plans must not be
  for (int32_t block : blocks) pool_.Unmark(block);
  hash_of_block_.clear();
  entries_.clear();
}

}  // namespace lockstep::engine
