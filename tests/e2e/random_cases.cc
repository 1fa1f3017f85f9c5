#include "tests/e2e/random_cases.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/time/clock.h"
#include "tests/e2e/stream_call.h"

namespace lockstep::testing {

Case RandomCase(std::mt19937_64& random, int vocab_size) {
  const auto pick = [&](int low, int high) {
    return static_cast<int>(low + random() % static_cast<uint64_t>(high - low + 1));
  };
  Case result;
  v1::GenerateRequest& request = result.request;
  const int prompt_tokens = pick(0, 3) == 0 ? pick(60, 180) : pick(1, 40);
  for (int i = 0; i < prompt_tokens; ++i) {
    request.mutable_token_ids()->add_ids(i == 0 ? 1 : pick(3, vocab_size - 1));
  }
  v1::SamplingOptions& sampling = *request.mutable_sampling();
  constexpr float kTemperatures[] = {0.0f, 0.3f, 0.8f, 1.0f, 1.5f};
  sampling.set_temperature(kTemperatures[pick(0, 4)]);
  if (pick(0, 2) == 0) sampling.set_top_k(pick(1, 50));
  if (pick(0, 2) == 0) sampling.set_top_p(0.5f + 0.05f * pick(0, 9));
  if (pick(0, 3) == 0) sampling.set_min_p(0.01f * pick(1, 20));
  if (pick(0, 3) == 0) sampling.set_repetition_penalty(1.0f + 0.1f * pick(0, 5));
  if (pick(0, 3) == 0) sampling.set_presence_penalty(0.1f * pick(-10, 10));
  if (pick(0, 3) == 0) sampling.set_frequency_penalty(0.1f * pick(-5, 10));
  if (pick(0, 5) == 0) (*sampling.mutable_logit_bias())[pick(3, vocab_size - 1)] = 5.0f;
  if (pick(0, 5) == 0) sampling.set_num_outputs(pick(2, 3));
  sampling.set_seed(random());
  request.mutable_stop()->set_max_tokens(pick(1, 60));
  request.mutable_stop()->set_ignore_eos(pick(0, 1) == 0);
  if (pick(0, 4) == 0) request.mutable_stop()->add_stop_strings("the");
  if (pick(0, 2) == 0) request.mutable_output()->set_logprobs(pick(0, 5));
  if (pick(0, 9) == 0) result.cancel_after_tokens = pick(0, 20);
  return result;
}

Outcome RunCase(const Connection& connection, const Case& c, bool may_cancel,
                const OnEvent& on_event) {
  Outcome outcome;
  outcome.status = ReadStream(connection, c.request, absl::Minutes(5),
                              [&](const v1::GenerateEvent& event, grpc::ClientContext& context) {
                                if (on_event) on_event(event);
                                outcome.Add(event);
                                const bool cancels = may_cancel && c.cancel_after_tokens >= 0;
                                if (cancels && outcome.num_tokens() >= c.cancel_after_tokens)
                                  context.TryCancel();
                              });
  return outcome;
}

namespace {

bool IsPrefix(const Outcome& part, const Outcome& whole) {
  for (const auto& [index, tokens] : part.tokens) {
    const auto it = whole.tokens.find(index);
    if (it == whole.tokens.end() || tokens.size() > it->second.size() ||
        !std::equal(tokens.begin(), tokens.end(), it->second.begin())) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::string Compare(const Case& c, const Outcome& alone, const Outcome& together) {
  if (!alone.status.ok()) return "reference failed: " + alone.status.error_message();
  if (together.status.error_code() == grpc::StatusCode::CANCELLED && c.cancel_after_tokens >= 0) {
    return IsPrefix(together, alone) ? "" : "the cancelled request's tokens are not a prefix";
  }
  if (!together.status.ok()) return "failed: " + together.status.error_message();
  if (alone.tokens != together.tokens) return "tokens differ";
  if (alone.text != together.text) return "text differs";
  if (alone.logprobs != together.logprobs) return "logprobs differ";
  if (alone.reasons != together.reasons) return "finish reasons differ";
  return "";
}

int64_t ResidentBytes(int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  int64_t total = 0;
  int64_t resident = 0;
  return file >> total >> resident ? resident * sysconf(_SC_PAGESIZE) : 0;
}

int64_t ResidentBytes(const Connection& connection, int server_pid) {
  int64_t bytes = server_pid > 0 ? ResidentBytes(server_pid) : 0;
  const auto status = connection.GetStatus(absl::Seconds(5));
  if (status.ok()) {
    for (const v1::RankStatus& rank : status->ranks()) bytes += ResidentBytes(rank.pid());
  }
  return bytes;
}

int64_t NumDescriptors(int64_t pid) {
  std::error_code error;
  const std::filesystem::directory_iterator fds("/proc/" + std::to_string(pid) + "/fd", error);
  return error ? -1 : std::distance(begin(fds), end(fds));
}

bool HasGrown(int64_t before, int64_t after) { return after > before + before / 10 + (8 << 20); }

int64_t BlocksLeftInUse(const Connection& connection) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    const auto status = connection.GetStatus(absl::Seconds(5));
    if (!status.ok()) return -1;
    if (status->num_running() == 0 && status->num_waiting() == 0) {
      return status->kv_blocks_in_use();
    }
    absl::SleepFor(absl::Milliseconds(50));
  }
  return -1;
}

void Outcome::Add(const v1::GenerateEvent& event) {
  if (event.has_finished()) reasons[event.finished().output_index()] = event.finished().reason();
  if (!event.has_delta()) return;
  const v1::TokenDelta& delta = event.delta();
  auto& ids = tokens[delta.output_index()];
  ids.insert(ids.end(), delta.token_ids().begin(), delta.token_ids().end());
  text[delta.output_index()] += delta.text();
  for (const v1::Logprobs& entry : delta.logprobs()) {
    auto& bits = logprobs[delta.output_index()];
    bits.push_back(entry.token().logprob());
    for (const v1::TokenLogprob& top : entry.top()) bits.push_back(top.logprob());
  }
}

int Outcome::num_tokens() const {
  size_t num_tokens = 0;
  for (const auto& [index, ids] : tokens) num_tokens += ids.size();
  return static_cast<int>(num_tokens);
}

}  // namespace lockstep::testing
