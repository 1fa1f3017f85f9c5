// A random workload from a seed: an engine configuration, requests that share prefixes, and things
// that happen to them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/engine/engine_driver.h"

namespace lockstep::engine {

class RandomWorkload {
 public:
  explicit RandomWorkload(uint64_t seed) : random_(seed) {
    config_.block_size = Between(1, 5);
    config_.num_blocks = Between(6, 40);
    config_.max_num_seqs = Between(1, 9);
    config_.max_batched_tokens = Between(1, 24);
    config_.max_model_len = Between(8, 60);
    config_.max_queued_requests = Between(2, 30);
    config_.pipeline_depth = OneIn(2) ? 1 : Between(2, 5);
    config_.max_steps_in_flight = OneIn(4) ? Between(1, 7) : config_.pipeline_depth + 1;
    config_.enable_prefix_cache = !OneIn(4);
    config_.eos_token_ids = {0, 1};
    config_.vocab_size = kVocabSize;
    if (OneIn(2)) {
      config_.max_draft_tokens = Between(1, 6);
      config_.max_step_drafts = Between(1, 20);
      if (OneIn(2)) config_.max_num_seqs = config_.max_batched_tokens = Between(10, 60);
    }
    if (OneIn(2)) config_.num_host_blocks = Between(1, 100);
    config_.num_prefetched_blocks = Between(1, 10);
    for (int i = 0; i < 3; ++i) families_.push_back(Tokens(Between(1, 30)));
  }

  const EngineConfig& config() const { return config_; }
  int Between(int low, int high) { return std::uniform_int_distribution<>(low, high)(random_); }
  bool OneIn(int n) { return Between(1, n) == 1; }

  EngineRequest NextRequest(const FakeLanguageModel& model, absl::Time now) {
    EngineRequest request;
    request.request_id = next_id_++;
    request.cache_salt = OneIn(5) ? "other" : "";
    request.prompt = families_[Between(0, 2)];  // some share a beginning
    request.prompt.resize(Between(1, static_cast<int>(request.prompt.size())));
    const std::vector<int32_t> rest = Tokens(Between(0, 10));
    request.prompt.insert(request.prompt.end(), rest.begin(), rest.end());
    SamplingParams& sampling = request.sampling;
    sampling.max_tokens = Between(1, 30);
    sampling.min_tokens = OneIn(3) ? Between(0, sampling.max_tokens) : 0;
    sampling.seed = OneIn(2) ? Between(0, 1000) : 1;
    sampling.ignore_eos = OneIn(4);
    if (OneIn(4)) sampling.stop_token_ids = {static_cast<int32_t>(Between(0, kVocabSize - 1))};
    if (OneIn(6)) sampling.num_prompt_logprobs = Between(0, 2);
    if (OneIn(6)) sampling.num_logprobs = Between(0, 2);
    request.num_outputs = OneIn(4) ? Between(2, 5) : 1;
    request.priority = OneIn(3) ? Between(-1, 1) : 0;
    if (OneIn(8)) request.deadline = now + absl::Milliseconds(Between(0, 60));
    if (OneIn(5)) EmitSome(model, request);
    if (OneIn(2)) request.prediction = PredictionOf(model, request);
    return request;
  }

  // Runs `num_requests` requests to their end, with aborts and lost replicas if asked for.
  void Run(EngineDriver& driver, int num_requests, bool may_lose_replica) {
    int left = num_requests;
    while (left > 0) {
      for (int i = Between(0, 3); i > 0 && left > 0; --i, --left) {
        (void)driver.Add(NextRequest(driver.model(), driver.now()));  // what cannot run is refused
      }
      if (OneIn(8)) driver.Abort(Between(1, static_cast<int>(next_id_)));
      if (OneIn(8)) FinishSome(driver);
      driver.Submit();
      if (may_lose_replica && OneIn(25)) driver.LoseReplica();
      for (int i = Between(0, 4); i > 0; --i) {
        driver.CommitNext();
        if (OneIn(2)) driver.Submit();
      }
    }
    driver.RunToEnd();
  }

 private:
  std::vector<int32_t> Tokens(int count) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(Between(0, kVocabSize - 1));
    return tokens;
  }

  // Of the first output, with some tokens that are wrong, missing or too many.
  std::vector<int32_t> PredictionOf(const FakeLanguageModel& model, const EngineRequest& request) {
    std::vector<int32_t> prediction;
    for (const int32_t token :
         model.Generate(request.prompt, request.sampling, 0, config_.max_model_len)) {
      if (OneIn(12)) prediction.push_back(Between(0, kVocabSize - 1));
      if (!OneIn(12)) prediction.push_back(token);
    }
    return prediction;
  }

  // Of each output its beginning, perhaps all or nothing.
  void EmitSome(const FakeLanguageModel& model, EngineRequest& request) {
    const int64_t longest =
        std::min(config_.max_model_len, config_.num_blocks * config_.block_size);
    for (int i = 0; i < request.num_outputs; ++i) {
      std::vector<int32_t> whole = model.Generate(request.prompt, request.sampling, i, longest);
      whole.resize(Between(0, static_cast<int>(whole.size())));
      request.emitted.push_back(std::move(whole));
    }
  }

  void FinishSome(EngineDriver& driver) {
    if (driver.outputs().empty()) return;
    auto it = driver.outputs().begin();
    std::advance(it, Between(0, static_cast<int>(driver.outputs().size()) - 1));
    driver.FinishOutput(it->first.first, it->first.second);
  }

  std::mt19937_64 random_;
  EngineConfig config_;
  std::vector<std::vector<int32_t>> families_;
  uint64_t next_id_ = 1;
};

}  // namespace lockstep::engine
