// Records of logits on a device (the emulation of CUDA) against records of the same on the host.
#include "model/sampling/device_summary.h"

#include <cmath>
#include <limits>
#include <random>

#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/model/sampling/sampling_workload.h"

namespace lockstep {
namespace {

using testing::HostileWorkload;
using testing::PlainSequence;
using testing::RandomWorkload;
using testing::RankWorkload;
using testing::Workload;

constexpr float kInf = std::numeric_limits<float>::infinity();

// A rank's logits on a device.
struct Device {
  DeviceBuffer logits;
  std::unique_ptr<DeviceSummarizer> summarizer;
};

absl::StatusOr<Device> MakeDevice(Backend& backend, const RankWorkload& mine, int64_t vocab_size,
                                  int tp, int rank) {
  Device device;
  const auto bytes = static_cast<int64_t>(mine.logits().size() * sizeof(float));
  ASSIGN_OR_RETURN(device.logits, backend.Allocate(bytes));
  backend.CopyToDevice(device.logits.data(), mine.logits().data(), bytes);
  ASSIGN_OR_RETURN(device.summarizer,
                   DeviceSummarizer::Create(backend, vocab_size, tp, rank,
                                            static_cast<int64_t>(mine.rows().size())));
  return device;
}

ShardedSizes VocabOnly(int64_t vocab_size) {
  ShardedSizes sizes;
  sizes.vocab_size = vocab_size;
  return sizes;
}

// ---- records ----

void ExpectStats(std::span<const SliceStats> got, std::span<const SliceStats> want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].max, want[i].max) << "slice " << i;
    EXPECT_NEAR(got[i].sum, want[i].sum, 1e-5 * want[i].sum) << "slice " << i;
  }
}

// The device's may be cut off sooner.
void ExpectList(const ListHeader* got_header, std::span<const Candidate> got,
                const ListHeader* want_header, std::span<const Candidate> want) {
  ASSERT_EQ(got_header == nullptr, want_header == nullptr);
  if (got_header == nullptr) return;
  if (want_header->count > kMaxLargestLogits) {
    const ListHeader cut = {.count = kMaxLargestLogits, .cut = 1};
    return ExpectList(got_header, got, &cut, want.first(kMaxLargestLogits));
  }
  ASSERT_EQ(got_header->count, want_header->count);
  // One as long as the device's can be may be all there is: the device does not look.
  if (got_header->count < kMaxLargestLogits || want_header->cut != 0) {
    EXPECT_EQ(got_header->cut, want_header->cut);
  }
  for (int32_t i = 0; i < got_header->count; ++i) {
    ASSERT_EQ(got[i].token, want[i].token) << "place " << i;
    ASSERT_EQ(got[i].value, want[i].value) << "place " << i;
  }
}

void ExpectRecord(const RowRecord& got, const RowRecord& want) {
  ExpectStats(got.raw_stats, want.raw_stats);
  ExpectStats(got.processed_stats, want.processed_stats);
  ExpectList(got.candidate_header, got.candidates, want.candidate_header, want.candidates);
  ExpectList(got.top_header, got.top, want.top_header, want.top);
  for (int32_t i = 0; !want.raw_values.empty() && i < got.candidate_header->count; ++i) {
    EXPECT_TRUE(got.raw_values[i] == want.raw_values[i] || !(want.raw_values[i] > -kInf));
  }
  if (want.target_logit == nullptr) return;
  EXPECT_TRUE(*got.target_logit == *want.target_logit || !(*want.target_logit > -kInf));
}

class DeviceSummary : public ::testing::Test {
 protected:
  int64_t ExpectRecords(const Workload& workload, int tp);

  std::unique_ptr<Backend> backend_ = cuda::CudaBackend::Create({}).value();
};

// Every rank's records of every row that the device takes; how many it took.
int64_t DeviceSummary::ExpectRecords(const Workload& workload, int tp) {
  const SamplerOptions options = {.vocab_size = workload.vocab_size,
                                  .eos_token_ids = workload.eos_token_ids};
  const ShardedSizes sizes = VocabOnly(workload.vocab_size);
  const int num_slices = NumVocabSlices(tp) / tp;
  int64_t num_taken = 0;
  for (int rank = 0; rank < tp; ++rank) {
    const Range vocab = VocabOf(sizes, tp, rank);
    std::vector<Range> slices;
    for (int i = 0; i < num_slices; ++i) {
      slices.push_back(VocabSlice(sizes, tp, rank * num_slices + i));
    }
    RowSummarizer on_host(vocab, slices, options.eos_token_ids);
    const RankWorkload mine(workload, vocab);
    auto device = MakeDevice(*backend_, mine, workload.vocab_size, tp, rank);
    EXPECT_TRUE(device.ok()) << device.status();
    device->summarizer->Begin(device->logits.as<float>());
    std::vector<size_t> taken;
    for (size_t i = 0; i < mine.rows().size(); ++i) {
      const RowShape shape = ShapeOf(mine.rows()[i], options, num_slices);
      if (device->summarizer->Add(static_cast<int64_t>(i), mine.rows()[i], shape,
                                  options.eos_token_ids)) {
        taken.push_back(i);
      }
    }
    device->summarizer->Issue();
    device->summarizer->Read();
    for (const size_t i : taken) {
      SCOPED_TRACE(::testing::Message() << "rank " << rank << ", row " << i);
      const RowShape shape = ShapeOf(mine.rows()[i], options, num_slices);
      std::vector<std::byte> want_bytes(RecordBytes(shape));
      std::vector<std::byte> got_bytes(want_bytes);
      RowRecord want = RecordAt(shape, want_bytes.data());
      RowRecord got = RecordAt(shape, got_bytes.data());
      on_host.Summarize(mine.rows()[i], shape,
                        std::span(mine.logits()).subspan(i * vocab.size(), vocab.size()), want);
      device->summarizer->Fill(static_cast<int64_t>(i), shape, got);
      ExpectRecord(got, want);
    }
    num_taken += static_cast<int64_t>(taken.size());
  }
  return num_taken;
}

TEST_F(DeviceSummary, RecordsAreTheHosts) {
  for (const int64_t vocab_size : {57, 100, 513, 1000, 2049}) {
    for (const int tp : {1, 2, 3, 8}) {
      SCOPED_TRACE(::testing::Message() << "vocabulary " << vocab_size << ", tp " << tp);
      const auto seed = static_cast<uint32_t>(vocab_size + tp);
      EXPECT_GT(ExpectRecords(RandomWorkload(seed, vocab_size, 30), tp), 15 * tp);
    }
  }
}

TEST_F(DeviceSummary, RecordsOfTinyVocabularies) {
  for (int64_t vocab_size = 1; vocab_size < 20; ++vocab_size) {
    Workload workload = RandomWorkload(static_cast<uint32_t>(vocab_size), vocab_size, 20);
    for (PlainSequence& sequence : workload.sequences) sequence.params.logit_bias.clear();
    workload.eos_token_ids = {static_cast<int32_t>(vocab_size - 1)};
    for (const int tp : {1, 8}) {
      SCOPED_TRACE(::testing::Message() << "vocabulary " << vocab_size << ", tp " << tp);
      ExpectRecords(workload, tp);
    }
  }
}

TEST_F(DeviceSummary, RecordsOfALargeVocabulary) {
  ExpectRecords(RandomWorkload(5, 32003, 6), 1);
  ExpectRecords(RandomWorkload(6, 32003, 4), 2);
}

TEST_F(DeviceSummary, RecordsOfHostileRows) {
  const Workload workload = HostileWorkload();
  for (const int tp : {1, 4}) ExpectRecords(workload, tp);
}

// More tokens with penalties than fit: the last rows are the host's.
TEST_F(DeviceSummary, RowsBeyondTheAdjustmentsAreSummarisedOnTheHost) {
  Workload workload = RandomWorkload(31, 16000, 20);
  for (PlainSequence& sequence : workload.sequences) {
    sequence.params.repetition_penalty = 1.3f;
    sequence.params.top_k = 50;
    for (int32_t token = 0; token < 16000; ++token) sequence.prompt.push_back(token);
  }
  workload.prompt_targets.assign(workload.prompt_targets.size(), -1);
  const int64_t num_taken = ExpectRecords(workload, 1);
  EXPECT_GE(num_taken, 10);
  EXPECT_LT(num_taken, 20);
}

}  // namespace
}  // namespace lockstep
