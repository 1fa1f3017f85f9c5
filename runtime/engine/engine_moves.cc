// Engine: requests that leave for another replica's, and those that come from there.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "runtime/engine/engine.h"

namespace lockstep::engine {

UnfinishedRequest Engine::Unfinished(const Request& request) {
  UnfinishedRequest leaving;
  leaving.given = request.given;
  leaving.admitted_at = request.admitted_at;
  leaving.given.num_losses = request.num_losses;
  for (const auto& sequence : request.sequences) {
    const auto output = sequence->tokens().subspan(request.given.prompt.size());
    leaving.outputs.push_back(
        {.tokens = {output.begin(), output.end()},
         .finished = sequence->state == Sequence::State::kFinished,
         .num_prompt_logprobs_delivered = sequence->num_prompt_logprobs_delivered,
         .num_cached_prompt_tokens = sequence->num_cached_prompt_tokens,
         .computed_at_loss = sequence->computed_at_loss});
  }
  return leaving;
}

std::vector<UnfinishedRequest> Engine::Evacuate() {
  LS_CHECK(in_flight_.empty() && events_.empty());
  std::vector<UnfinishedRequest> unfinished;
  for (const auto& [id, request] : requests_) unfinished.push_back(Unfinished(*request));
  std::sort(unfinished.begin(), unfinished.end(),
            [](const auto& a, const auto& b) { return a.given.request_id < b.given.request_id; });
  scheduler_.Reset();
  deadlines_.clear();
  suspects_.clear();
  requests_.clear();
  num_queued_requests_ = 0;
  return unfinished;
}

void Engine::Adopt(UnfinishedRequest unfinished) {
  LS_CHECK(CheckRequest(unfinished.given).ok()) << "request " << unfinished.given.request_id;
  LS_CHECK_EQ(static_cast<int>(unfinished.outputs.size()), unfinished.given.num_outputs);
  std::unique_ptr<Request> request = MakeRequest(std::move(unfinished.given));
  request->admitted_at = unfinished.admitted_at;
  for (size_t i = 0; i < unfinished.outputs.size(); ++i) {
    const UnfinishedRequest::Output& output = unfinished.outputs[i];
    Sequence& sequence = *request->sequences[i];
    for (const int32_t token : output.tokens) sequence.Append(token);
    sequence.num_prompt_logprobs_delivered = output.num_prompt_logprobs_delivered;
    sequence.num_cached_prompt_tokens = output.num_cached_prompt_tokens;
    sequence.computed_at_loss = output.computed_at_loss;
    if (!output.finished) continue;
    sequence.state = Sequence::State::kFinished;
    --request->num_unfinished;
  }
  LS_CHECK_GE(request->num_unfinished, 1);
  Insert(std::move(request));
}

const EngineRequest* Engine::StrandedRequest() const {
  const Request* request = scheduler_.StrandedRequest();
  return request == nullptr ? nullptr : &request->given;
}

bool Engine::HasRoomFor(const EngineRequest& request) const {
  return suspects_.empty() && scheduler_.HasRoomFor(request);
}

UnfinishedRequest Engine::Release(uint64_t request_id) {
  LS_CHECK(events_.empty());
  const Request& request = *requests_.at(request_id);
  LS_CHECK(!request.admitted_at) << "request " << request_id;
  UnfinishedRequest leaving = Unfinished(request);
  Abort(request_id);
  return leaving;
}

}  // namespace lockstep::engine
