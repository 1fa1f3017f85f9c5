// All that a client got of one request, and whether two clients got the same. For one thread at a
// time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/support/status.h"
#include "lockstep/v1/generation.pb.h"

namespace lockstep::testing {

using Problems = std::vector<std::string>;

struct Delivery {
  struct Output {
    std::vector<int32_t> token_ids;
    std::string text;
    std::vector<v1::Logprobs> logprobs;
    std::optional<v1::OutputFinished> finished;
    std::vector<std::pair<size_t, size_t>> parts;  // tokens and bytes of text after each delta
  };

  grpc::Status status;
  std::optional<v1::PromptAccepted> accepted;
  std::vector<v1::Logprobs> prompt_logprobs;  // of positions 1, 2, ...
  std::map<uint32_t, Output> outputs;
  bool attached = false;  // it was not one stream
  Problems problems;      // events that may not come, or not now

  void Add(const v1::GenerateEvent& event);
  // What a client that keeps the first part of its deltas would show to Attach; `this` becomes what
  // that client has. num_parts: of each output.
  v1::AttachRequest Attach(const std::map<uint32_t, size_t>& num_parts);

  int num_tokens() const;
  int num_cached() const;    // prompt tokens, as usage says; 0 before it came
  bool complete() const;     // every output finished
  bool was_refused() const;  // as the queue is full

 private:
  void AddPromptLogprobs(const v1::PromptLogprobs& given);
  void AddDelta(const v1::TokenDelta& delta);
  void AddFinish(const v1::OutputFinished& finished);
};

// Every bit of what was delivered for the request must be the truth's. An output that ended early
// must have begun like it.
Problems Compare(const v1::GenerateRequest& request, const Delivery& truth,
                 const Delivery& delivery);

}  // namespace lockstep::testing
