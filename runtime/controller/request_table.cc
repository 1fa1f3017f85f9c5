#include "runtime/controller/request_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"

namespace lockstep {

absl::Status RequestTable::CheckNew(const std::string& request_id) const {
  if (!by_name_.contains(request_id)) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("request_id \"", request_id, "\" belongs to a request that still runs"));
}

void RequestTable::Insert(std::shared_ptr<RequestStream> stream) {
  const StreamSpec& spec = stream->spec();
  LS_CHECK(by_name_.emplace(spec.request_id, spec.number).second);
  Active active;
  active.finished.resize(spec.num_outputs);
  active.num_unfinished = spec.num_outputs;
  const uint64_t number = spec.number;
  active.stream = std::move(stream);
  LS_CHECK(by_number_.emplace(number, std::move(active)).second);
}

std::shared_ptr<RequestStream> RequestTable::Find(uint64_t number) const {
  const auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : found->second.stream;
}

std::shared_ptr<RequestStream> RequestTable::FindByName(const std::string& request_id) const {
  const auto found = by_name_.find(request_id);
  return found == by_name_.end() ? nullptr : Find(found->second);
}

bool RequestTable::FinishOutput(uint64_t number, uint32_t sequence_index) {
  const auto found = by_number_.find(number);
  if (found == by_number_.end()) return false;
  Active& active = found->second;
  LS_CHECK_LT(sequence_index, active.finished.size());
  if (active.finished[sequence_index]) return false;
  active.finished[sequence_index] = true;
  if (--active.num_unfinished > 0) return false;
  Remove(number);
  return true;
}

void RequestTable::Remove(uint64_t number) {
  const auto found = by_number_.find(number);
  if (found == by_number_.end()) return;
  by_name_.erase(found->second.stream->spec().request_id);
  by_number_.erase(found);
}

std::vector<std::shared_ptr<RequestStream>> RequestTable::All() const {
  std::vector<std::shared_ptr<RequestStream>> all;
  all.reserve(by_number_.size());
  for (const auto& [number, active] : by_number_) all.push_back(active.stream);
  return all;
}

}  // namespace lockstep
