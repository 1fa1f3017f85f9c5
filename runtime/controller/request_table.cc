#include "runtime/controller/request_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"

namespace lockstep {

absl::Status RequestTable::CheckNew(const std::string& name) const {
  if (!by_name_.contains(name)) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("request_id \"", name, "\" belongs to a request that still runs"));
}

RequestTable::Entry& RequestTable::Insert(uint64_t number, std::string name, int num_outputs,
                                          int replica) {
  LS_CHECK(by_name_.emplace(name, number).second);
  Entry entry;
  entry.name = std::move(name);
  entry.replica = replica;
  entry.finished.resize(num_outputs);
  entry.num_unfinished = num_outputs;
  entry.last_token_at.resize(num_outputs, absl::InfinitePast());
  const auto [inserted, is_new] = by_number_.emplace(number, std::move(entry));
  LS_CHECK(is_new);
  return inserted->second;
}

RequestTable::Entry* RequestTable::Find(uint64_t number) {
  const auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : &found->second;
}

std::optional<uint64_t> RequestTable::FindByName(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::nullopt;
  return found->second;
}

bool RequestTable::FinishOutput(uint64_t number, uint32_t sequence_index) {
  Entry* entry = Find(number);
  if (entry == nullptr) return false;
  LS_CHECK_LT(sequence_index, entry->finished.size());
  if (entry->finished[sequence_index]) return false;
  entry->finished[sequence_index] = true;
  return --entry->num_unfinished == 0;
}

void RequestTable::Remove(uint64_t number) {
  const auto found = by_number_.find(number);
  if (found == by_number_.end()) return;
  by_name_.erase(found->second.name);
  by_number_.erase(found);
}

bool RequestTable::AnyHasTokens() const {
  for (const auto& [number, entry] : by_number_) {
    for (const absl::Time last : entry.last_token_at) {
      if (last != absl::InfinitePast()) return true;
    }
  }
  return false;
}

std::vector<uint64_t> RequestTable::All() const {
  std::vector<uint64_t> all;
  all.reserve(by_number_.size());
  for (const auto& [number, entry] : by_number_) all.push_back(number);
  return all;
}

}  // namespace lockstep
