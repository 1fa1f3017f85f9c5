// The requests that the core has accepted and not ended, by number and by their clients' names. The
// core's thread only. Ordered by number, so that what is done to all of them is done in one order.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

namespace lockstep {

class RequestTable {
 public:
  struct Entry {
    std::string name;                   // request_id
    int replica = 0;                    // whose engine has it
    std::vector<bool> finished;         // [num_outputs]
    std::optional<size_t> killer = {};  // of KillerPrompts::Find
    int num_unfinished = 0;
    bool ended_early = false;  // an output: by a deadline, or with an error
    // For what is measured of it.
    absl::Time accepted_at;
    int64_t num_prompt_tokens = 0;
    int64_t num_output_tokens = 0;          // of all outputs, since it was accepted
    std::vector<absl::Time> last_token_at;  // [num_outputs], of the infinite past before the first
  };

  // ALREADY_EXISTS when a request of this name runs.
  absl::Status CheckNew(const std::string& name) const;
  Entry& Insert(uint64_t number, std::string name, int num_outputs, int replica);

  // Null when there is none.
  Entry* Find(uint64_t number);
  std::optional<uint64_t> FindByName(const std::string& name) const;

  // One output ended. True when it was the request's last, which is the caller's to remove.
  bool FinishOutput(uint64_t number, uint32_t sequence_index);
  void Remove(uint64_t number);

  std::vector<uint64_t> All() const;
  // Whether some output of some request has begun.
  bool AnyHasTokens() const;
  bool empty() const { return by_number_.empty(); }
  size_t size() const { return by_number_.size(); }

 private:
  std::map<uint64_t, Entry> by_number_;
  absl::flat_hash_map<std::string, uint64_t> by_name_;
};

}  // namespace lockstep
