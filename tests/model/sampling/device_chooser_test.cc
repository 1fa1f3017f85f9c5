// What a chooser does before its first call.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "model/sampling/device_choice.h"
#include "tests/parallel/run_ranks.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;

// Notes which calls come.
class NotingBackend final : public cuda::CudaBackend {
 public:
  NotingBackend() : CudaBackend({}) { EXPECT_TRUE(Start().ok()); }
  void SummarizeLogits(const LogitsSummaryArgs& args) override {
    Note("summarize");
    CudaBackend::SummarizeLogits(args);
  }
  void ChooseTokens(const TokenChoiceArgs& args) override {
    Note(args.kept != nullptr ? "choose from whole rows" : "choose");
    CudaBackend::ChooseTokens(args);
  }
  void GatherRows(const void* in, const int32_t* rows, int64_t num_rows, int64_t row_bytes,
                  void* out) override {
    Note("gather");
    CudaBackend::GatherRows(in, rows, num_rows, row_bytes, out);
  }
  void PlaceChosenTokens(const ChosenToken* chosen, const int32_t* places, int64_t count,
                         ChosenToken* table) override {
    Note("place");
    CudaBackend::PlaceChosenTokens(chosen, places, count, table);
  }
  void TakeChosenTokens(const ChosenToken* chosen, const int32_t* sources, int64_t num_tokens,
                        int32_t* ids) override {
    Note("take");
    CudaBackend::TakeChosenTokens(chosen, sources, num_tokens, ids);
  }

  std::vector<std::string> calls;

 private:
  void Note(std::string call) { calls.push_back(std::move(call)); }
};

TEST(DeviceChooser, EveryKernelHasRunBeforeItsFirstCall) {
  for (const int64_t vocab_size : {2, 5, 1500}) {
    testing::RunRanks(1, 1, [&](int, RankGroups& groups) -> absl::Status {
      NotingBackend backend;
      RETURN_IF_ERROR(DeviceChooser::Create(backend, vocab_size, *groups.tp, 10).status());
      EXPECT_THAT(backend.calls, ElementsAre("summarize", "choose from whole rows", "take"));
      return absl::OkStatus();
    });
    // Those of several without each other: when one comes back, nobody answers.
    testing::RunRanks(3, 1, [&](int, RankGroups& groups) -> absl::Status {
      groups.tp->Abort();
      NotingBackend backend;
      RETURN_IF_ERROR(DeviceChooser::Create(backend, vocab_size, *groups.tp, 10).status());
      EXPECT_THAT(backend.calls,
                  ElementsAre("summarize", "choose from whole rows", "gather", "place", "take"));
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace lockstep
