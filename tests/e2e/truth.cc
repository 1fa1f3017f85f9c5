#include "tests/e2e/truth.h"

#include <utility>

#include "tests/e2e/stream_call.h"

namespace lockstep::testing {
namespace {

constexpr size_t kMaxQueued = 200;

}  // namespace

Truth::Truth(const Connection& reference, OnProblems on_problems)
    : reference_(reference), on_problems_(std::move(on_problems)), thread_([this] { Run(); }) {}

Truth::~Truth() { Finish(); }

void Truth::Judge(uint64_t number, CaseResult::Observed observed) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.size() < kMaxQueued; });
  queue_.emplace_back(number, std::move(observed));
  changed_.notify_all();
}

int Truth::Finish() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  return num_judged_;
}

void Truth::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closed_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const auto [number, observed] = std::move(queue_.front());
    queue_.pop_front();
    changed_.notify_all();
    lock.unlock();
    Problems problems = JudgeOne(observed);
    if (!problems.empty()) on_problems_(number, observed, std::move(problems));
    lock.lock();
    ++num_judged_;
  }
}

// Alone, its prompt is what our own tokenizer made of its text.
Problems Truth::JudgeOne(const CaseResult::Observed& observed) {
  v1::GenerateRequest request = observed.request;
  request.clear_request_id();
  request.clear_cache_salt();
  request.clear_priority();
  auto& ids = *request.mutable_token_ids()->mutable_ids();
  ids.Assign(observed.prompt.begin(), observed.prompt.end());
  request.mutable_sampling()->set_seed(observed.delivery.accepted->seed());
  Delivery truth;
  truth.status =
      ReadStream(reference_, request, absl::Minutes(3),
                 [&](const v1::GenerateEvent& event, grpc::ClientContext&) { truth.Add(event); });
  return Compare(request, truth, observed.delivery);
}

}  // namespace lockstep::testing
