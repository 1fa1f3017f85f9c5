// FakeStage's language model on emulated devices, one for each rank, whose memory is the host's:
// ids come from where tokens were chosen and logits are made when their turn in the stream comes,
// no sooner. Ranks talk from device to device.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/accelerator.h"
#include "kernels/base/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "model/sampling/device_choice.h"
#include "model/sampling/token_return.h"
#include "parallel/device_communicators.h"
#include "tests/worker/fake_stage.h"

extern "C" const lockstep::AcceleratorPlugin* lockstep_plugin();

namespace lockstep::testing {

class FakeDeviceStage {
 public:
  static constexpr int64_t kMaxTokens = 2048;
  static constexpr int64_t kMaxRows = 32;        // of which there are logits at once
  static constexpr int64_t kMaxRowsAhead = 128;  // of a step that runs ahead
  static constexpr ChoiceLimits kChoiceLimits = {.rows = 32, .kept_rows = 4};
  static constexpr int64_t kMaxSeqs = 600;

  // There must be as many devices as ranks.
  explicit FakeDeviceStage(RankGroups& host, int64_t vocab_size = kFakeVocab)
      : backend_(cuda::CudaBackend::Create(
                     {.device = host.pp->rank() * host.tp->size() + host.tp->rank()})
                     .value()),
        groups_(MakeDeviceGroups(lockstep_plugin()->accelerator->communicators(), *backend_, host,
                                 {.max_hidden_states = kMaxTokens,
                                  .bytes_back = TokenReturn::MessageBytes(kMaxSeqs),
                                  .notice = nullptr})
                    .value()) {
    ShardedSizes sizes;
    sizes.vocab_size = vocab_size;
    vocab_ = VocabOf(sizes, host.tp->size(), host.tp->rank());
    ids_ = backend_->Allocate(kMaxTokens * 4).value();
    sources_ = backend_->Allocate(kMaxTokens * 4).value();
    logits_ = backend_->Allocate(kMaxRows * vocab_.size() * 4).value();
    const auto health = [this]() -> absl::Status {
      RETURN_IF_ERROR(groups_.tp->Health());
      return groups_.pp->Health();
    };
    if (is_last()) {
      chooser_ = DeviceChooser::Create(*backend_, vocab_size, *groups_.tp, kMaxRowsAhead,
                                       {.health = health, .limits = kChoiceLimits})
                     .value();
    }
    if (is_first() != is_last()) {
      token_return_ = TokenReturn::Create(*backend_, *groups_.pp, kMaxSeqs).value();
    }
  }
  // What was issued reads what is given up here.
  ~FakeDeviceStage() { backend_->Synchronize(); }

  StageCalls Calls(int64_t max_logits_rows = kMaxRows) {
    return {.forward = [this](const StepBatch& batch) { return Forward(batch); },
            .logits = [this](int64_t first, int64_t count) { return Logits(first, count); },
            .max_logits_rows = max_logits_rows,
            .device_logits = chooser_.get(),
            .token_return = token_return_.get()};
  }
  RankGroups& groups() { return groups_; }

 private:
  // Of some rows, made in the stream.
  struct LogitsWork {
    const int32_t* ids;  // of the batch
    std::vector<int32_t> rows;
    std::vector<int32_t> positions;
    Range vocab;
    float* logits;
  };

  bool is_first() const { return groups_.pp->rank() == 0; }
  bool is_last() const { return groups_.pp->rank() == groups_.pp->size() - 1; }

  absl::Status Forward(const StepBatch& batch) {
    positions_ = batch.positions;
    rows_ = batch.logits_rows;
    Communicator& pp = *groups_.pp;
    const int64_t bytes = batch.num_tokens() * 4;
    if (is_first()) {
      TakeIds(batch);
    } else {
      RETURN_IF_ERROR(pp.Recv(pp.rank() - 1, ids_.data(), bytes));
    }
    return is_last() ? absl::OkStatus() : pp.Send(pp.rank() + 1, ids_.data(), bytes);
  }

  void TakeIds(const StepBatch& batch) {
    backend_->CopyToDevice(ids_.data(), batch.token_ids.data(), batch.num_tokens() * 4);
    if (batch.token_sources.empty()) return;
    backend_->CopyToDevice(sources_.data(), batch.token_sources.data(), batch.num_tokens() * 4);
    backend_->TakeChosenTokens(
        token_return_ != nullptr ? token_return_->table() : chooser_->chosen_on_device(),
        sources_.as<int32_t>(), batch.num_tokens(), ids_.as<int32_t>());
  }

  absl::StatusOr<const float*> Logits(int64_t first, int64_t count) {
    auto work = std::make_unique<LogitsWork>(LogitsWork{.ids = ids_.as<int32_t>(),
                                                        .rows = {},
                                                        .positions = {},
                                                        .vocab = vocab_,
                                                        .logits = logits_.as<float>()});
    for (int64_t i = first; i < first + count; ++i) {
      work->rows.push_back(rows_[i]);
      work->positions.push_back(positions_[rows_[i]]);
    }
    LS_CHECK(cudaLaunchHostFunc(backend_->stream(), MakeLogits, work.release()) == cudaSuccess);
    return logits_.as<float>();
  }

  static void MakeLogits(void* given) {
    const std::unique_ptr<LogitsWork> work(static_cast<LogitsWork*>(given));
    const int64_t width = work->vocab.size();
    std::fill_n(work->logits, static_cast<int64_t>(work->rows.size()) * width, 0.0f);
    for (size_t i = 0; i < work->rows.size(); ++i) {
      const int32_t next = NextToken(work->ids[work->rows[i]], work->positions[i]);
      if (next < work->vocab.begin || next >= work->vocab.end) continue;
      work->logits[static_cast<int64_t>(i) * width + next - work->vocab.begin] = 10.0f;
    }
  }

  std::unique_ptr<cuda::CudaBackend> backend_;
  RankGroups groups_;
  Range vocab_;
  DeviceBuffer ids_;
  DeviceBuffer sources_;
  DeviceBuffer logits_;
  std::unique_ptr<DeviceChooser> chooser_;     // last stage
  std::unique_ptr<TokenReturn> token_return_;  // first and last stage of several
  std::vector<int32_t> positions_;
  std::vector<int32_t> rows_;
};

}  // namespace lockstep::testing
