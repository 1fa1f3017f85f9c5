// The requests that the engine holds, by number and by their clients' names. Event loop thread
// only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "runtime/controller/request_stream.h"

namespace lockstep {

class RequestTable {
 public:
  // ALREADY_EXISTS when a request of this name runs.
  absl::Status CheckNew(const std::string& request_id) const;
  void Insert(std::shared_ptr<RequestStream> stream);

  // Null when there is none.
  std::shared_ptr<RequestStream> Find(uint64_t number) const;
  std::shared_ptr<RequestStream> FindByName(const std::string& request_id) const;

  // One output ended. True when it was the request's last, which is then removed.
  bool FinishOutput(uint64_t number, uint32_t sequence_index);
  void Remove(uint64_t number);

  std::vector<std::shared_ptr<RequestStream>> All() const;
  bool empty() const { return by_number_.empty(); }

 private:
  struct Active {
    // Shared with the stream thread, which may still be writing what the loop handed over.
    std::shared_ptr<RequestStream> stream;
    std::vector<bool> finished;
    int num_unfinished = 0;
  };
  absl::flat_hash_map<uint64_t, Active> by_number_;
  absl::flat_hash_map<std::string, uint64_t> by_name_;
};

}  // namespace lockstep
