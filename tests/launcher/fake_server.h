// A Generation service over a real socket that answers by rule, for testing clients without a
// model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "grpcpp/grpcpp.h"
#include "lockstep/v1/generation.grpc.pb.h"

namespace lockstep::testing {

// Generate answers max_tokens tokens "t0 t1 ..." for each output, one per message. The prompt
// "refuse" is RESOURCE_EXHAUSTED, "hang" sends one token and then waits for the cancellation,
// "flood" sends text until then, "break" is UNAVAILABLE after the last event; what follows the last
// "say:" of a prompt, up to the next "<" or line, is said again, what follows "muse:" after a
// thought. Chats, whose prompts are token ids, are answered "So.\n</think>\n\nYes." where they do
// not say how long the answer may be. Tokenize knows one token,
// chat_template; all else is two. Detokenize tells of token N "tN ". A constraint is
// INVALID_ARGUMENT, which shows it, but where calls may be made a call of "f" is, by JSON alone.
// GetStatus counts 4711 requests.
class FakeServer {
 public:
  explicit FakeServer(std::string chat_template = "");
  ~FakeServer();
  const std::string& address() const { return address_; }
  int64_t num_flooded() const;  // messages of 1 MiB that "flood" has got rid of

 private:
  class Service;
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace lockstep::testing
