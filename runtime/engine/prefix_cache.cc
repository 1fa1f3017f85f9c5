#include "runtime/engine/prefix_cache.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "runtime/engine/mix.h"

namespace lockstep::engine {

PrefixCache::PrefixCache(BlockPool& pool, int block_size, int64_t num_host_blocks,
                         uint64_t hash_mask)
    : pool_(pool), block_size_(block_size), hash_mask_(hash_mask) {
  SetHostBlocks(num_host_blocks);
}

void PrefixCache::SetHostBlocks(int64_t num_host_blocks) {
  LS_CHECK(entries_.empty());
  host_blocks_.reset();
  if (num_host_blocks == 0) return;
  host_blocks_.emplace(num_host_blocks, [this](uint64_t hash) { ForgetHostBlock(hash); });
  is_to_be_offloaded_.assign(pool_.num_blocks(), false);
  // Growing to a million entries takes a step's time and more.
  entries_.reserve(pool_.num_blocks() + num_host_blocks);
}

int64_t PrefixCache::Match::num_to_restore() const {
  return std::count(blocks.begin(), blocks.end(), kNoBlock);
}

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
    match.host_blocks.push_back(entry->host_block);
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
  if (Find(hash, salt, parent, tokens) != nullptr) {
    Entry& entry = entries_.at(hash);
    if (entry.block != block) {
      if (entry.block == kNoBlock) {
        entry.block = block;
      } else {
        entry.twins.push_back(block);
      }
      Mark(block, hash);
    }
    return entry.node;
  }
  const Node node = next_node_++;
  Entry entry{block, kNoBlock, node, parent, std::string(salt), {tokens.begin(), tokens.end()}};
  // On a true collision the newcomer stays unnamed; its children hang from a node that nobody
  // finds.
  if (!entries_.try_emplace(hash, std::move(entry)).second) return node;
  Mark(block, hash);
  WantOffload(block);
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
  } else if (entry->second.host_block != kNoBlock) {
    entry->second.block = kNoBlock;
  } else {
    entries_.erase(entry);
  }
}

bool PrefixCache::Keeps(int32_t block) {
  const auto it = hash_of_block_.find(block);
  LS_CHECK(it != hash_of_block_.end()) << "block " << block;
  Entry& entry = entries_.at(it->second);
  if (entry.block == block) {
    if (entry.host_block != kNoBlock) {
      host_blocks_->Touch(entry.host_block);
    } else if (host_blocks_ && host_blocks_->num_blocks() > pool_.num_blocks()) {
      WantOffload(block);
    }
    return true;
  }
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
  if (!host_blocks_) return;
  to_offload_.clear();
  SetHostBlocks(host_blocks_->num_blocks());
}

void PrefixCache::WantOffload(int32_t block) {
  if (!host_blocks_ || is_to_be_offloaded_[block]) return;
  is_to_be_offloaded_[block] = true;
  to_offload_.push_back(block);
}

std::vector<BlockCopy> PrefixCache::TakeOffloads(int64_t most) {
  std::vector<BlockCopy> copies;
  size_t num_seen = 0;
  // No copy that is made now gives way to another one.
  most = host_blocks_ ? std::min(most, host_blocks_->num_blocks()) : 0;
  while (num_seen < to_offload_.size() && std::ssize(copies) < most) {
    const int32_t block = to_offload_[num_seen++];
    is_to_be_offloaded_[block] = false;
    const auto it = hash_of_block_.find(block);
    if (it == hash_of_block_.end()) continue;
    Entry& entry = entries_.at(it->second);
    if (entry.block != block || entry.host_block != kNoBlock) continue;
    // The entry stays, whichever copy gives way: it has a block.
    entry.host_block = host_blocks_->Take(it->second);
    copies.push_back({block, entry.host_block});
  }
  to_offload_.erase(to_offload_.begin(), to_offload_.begin() + num_seen);
  return copies;
}

void PrefixCache::Restore(int32_t host_block, int32_t block) {
  const uint64_t hash = host_blocks_->NameOf(host_block);
  Entry& entry = entries_.at(hash);
  LS_CHECK_EQ(entry.host_block, host_block);
  LS_CHECK_EQ(entry.block, kNoBlock) << "host block " << host_block;
  entry.block = block;
  Mark(block, hash);
  host_blocks_->Touch(host_block);
}

void PrefixCache::CheckInvariants() const {
  size_t num_blocks = 0;
  int64_t num_host_blocks = 0;
  for (const auto& [hash, entry] : entries_) {
    LS_CHECK(entry.block != kNoBlock || (entry.host_block != kNoBlock && entry.twins.empty()));
    if (entry.block != kNoBlock) {
      ++num_blocks;
      LS_CHECK_EQ(hash_of_block_.at(entry.block), hash) << "block " << entry.block;
    }
    for (const int32_t twin : entry.twins) LS_CHECK_EQ(hash_of_block_.at(twin), hash);
    num_blocks += entry.twins.size();
    if (entry.host_block == kNoBlock) continue;
    ++num_host_blocks;
    LS_CHECK_EQ(host_blocks_->NameOf(entry.host_block), hash) << "host block " << entry.host_block;
  }
  LS_CHECK_EQ(num_blocks, hash_of_block_.size());
  if (!host_blocks_) return;
  host_blocks_->CheckInvariants();
  LS_CHECK_EQ(num_host_blocks, host_blocks_->num_in_use());
}

void PrefixCache::ForgetHostBlock(uint64_t hash) {
  const auto entry = entries_.find(hash);
  LS_CHECK(entry != entries_.end());
  entry->second.host_block = kNoBlock;
  if (entry->second.block == kNoBlock) entries_.erase(entry);
}

}  // namespace lockstep::engine
