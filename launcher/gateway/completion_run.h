// The calls of one completion, and what comes back of them, for one HTTP exchange.
#pragma once

#include <utility>  // before Boost 1.74's awaitable.hpp

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "launcher/client/connection.h"
#include "launcher/client/generation_call.h"
#include "launcher/client/retry_clock.h"
#include "launcher/gateway/openai_reply.h"
#include "launcher/gateway/openai_request.h"
#include "launcher/gateway/side_thread.h"
#include "launcher/http/http_exchange.h"

namespace lockstep {

class CompletionRun {
 public:
  // patience: how long a server that went away is looked for, if it keeps a journal. Everything it
  // refers to must outlive Run.
  CompletionRun(const Connection& connection, const OpenAiRequest& asked, OpenAiReply& reply,
                HttpExchange& exchange, SideThread& side_thread, absl::Duration patience)
      : connection_(connection),
        asked_(asked),
        reply_(reply),
        exchange_(exchange),
        side_thread_(side_thread),
        patience_(patience) {}

  // requests: one to each prompt. Answers the exchange. Returns when all calls have ended, whatever
  // becomes of the client.
  Awaitable<void> Run(std::vector<v1::GenerateRequest> requests);

 private:
  struct Arrival {
    size_t prompt = 0;
    v1::GenerateEvent event;           // unless it is done
    std::optional<grpc::Status> done;  // the call's last word
    int64_t num_bytes = 0;
    bool stops_reading = false;  // its call's next event is read when this one has been told
  };
  class Inbox;
  // One prompt's stream, which may go on in another call.
  struct Output {
    std::unique_ptr<GenerationCall> call;
    RetryClock retries;
    absl::Time continue_at = absl::InfiniteFuture();  // it waits for its server
  };

  template <typename Request>
  void Call(size_t prompt, Request request);
  absl::Duration ContinueThoseDue();
  void EndAll();
  Awaitable<void> Pump();
  Awaitable<void> Take(const Arrival& arrival);
  Awaitable<void> Tell(const Arrival& arrival);
  void Ended(size_t prompt, const grpc::Status& status);
  void Fail(const grpc::Status& status);
  Awaitable<void> Begin();
  Awaitable<void> Flush();
  Awaitable<void> Finish();
  Awaitable<void> LookAtClient();
  void AppendEvent(absl::string_view data);

  const Connection& connection_;
  const OpenAiRequest& asked_;
  OpenAiReply& reply_;
  HttpExchange& exchange_;
  SideThread& side_thread_;
  const absl::Duration patience_;

  std::shared_ptr<Inbox> inbox_;  // shared with gRPC's threads
  std::vector<Output> outputs_;   // by prompt
  size_t num_running_ = 0;
  std::optional<grpc::Status> failure_;  // the first one
  bool has_begun_ = false;               // to stream
  bool is_gone_ = false;                 // nobody listens any more
  std::string unsent_;                   // events of the stream
  absl::Time looked_at_;                 // at the client
  absl::Time wrote_at_;
};

}  // namespace lockstep
