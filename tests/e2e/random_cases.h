// Random requests, what one delivers, and whether two deliveries are the same: shared by the
// programs that load a server and check every answer.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "launcher/client/connection.h"

namespace lockstep::testing {

struct Case {
  v1::GenerateRequest request;
  int cancel_after_tokens = -1;  // -1 = never
};
// A tenth is to be cancelled.
Case RandomCase(std::mt19937_64& random, int vocab_size);

// What one request delivered, per output: ids, text and the bits of the logprobs.
struct Outcome {
  grpc::Status status;
  std::map<uint32_t, std::vector<int32_t>> tokens;
  std::map<uint32_t, std::string> text;
  std::map<uint32_t, std::vector<float>> logprobs;
  std::map<uint32_t, int> reasons;

  int num_tokens() const;
  void Add(const v1::GenerateEvent& event);
};
using OnEvent = std::function<void(const v1::GenerateEvent&)>;
Outcome RunCase(const Connection& connection, const Case& c, bool may_cancel,
                const OnEvent& on_event = nullptr);

// What differs, or empty. A cancelled request must have delivered a prefix.
std::string Compare(const Case& c, const Outcome& alone, const Outcome& together);

// Of a process of this host; 0 when it is gone.
int64_t ResidentBytes(int64_t pid);
// Of the server's processes on this host: its ranks and, when given, itself.
int64_t ResidentBytes(const Connection& connection, int server_pid);
// Open in that process; -1 when it is gone.
int64_t NumDescriptors(int64_t pid);
// Is `after` more than a tenth and 8 MiB above `before`?
bool HasGrown(int64_t before, int64_t after);
// Waits until nothing runs; then the number of cache blocks still in use, or -1.
int64_t BlocksLeftInUse(const Connection& connection);

}  // namespace lockstep::testing
