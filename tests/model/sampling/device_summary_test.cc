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

constexpr float kSummaryInf = std::numeric_limits<float>::infinity();

// A rank's logits on a device.
struct Device {
  DeviceBuffer logits;
  std::unique_ptr<DeviceSummarizer> summarizer;
};

// Of the candidates of a choice.
void FillChoice(const std::byte* bytes, int num_slices, Range vocab, const RowShape& shape,
                RowRecord& record) {
  const auto* summary = reinterpret_cast<const LogitsSummary*>(bytes);
  const auto* slices = reinterpret_cast<const LogitsSlice*>(summary + 1);
  const auto* largest = reinterpret_cast<const LargestLogit*>(slices + num_slices);
  for (size_t i = 0; i < record.processed_stats.size(); ++i) {
    record.processed_stats[i] = {.max = slices[i].max, .sum = slices[i].sum};
  }
  const auto first = static_cast<int32_t>(vocab.begin);
  int32_t count = summary->count;
  for (int32_t i = 0; i < count; ++i) {
    record.candidates[i] = {.value = largest[i].value, .token = first + largest[i].index};
    if (!record.raw_values.empty()) record.raw_values[i] = largest[i].raw;
  }
  record.candidate_header->cut =
      count == DeviceSummarizer::NumLargest(shape) && count < vocab.size();
  // Token 0 is chosen when nothing else can be: its raw logit must be known.
  if (count == 0 && first == 0) {
    record.candidates[0] = {.value = -kSummaryInf, .token = 0};
    if (!record.raw_values.empty()) record.raw_values[0] = summary->told;
    count = 1;
  }
  record.candidate_header->count = count;
}

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

ShardedSizes SummaryVocab(int64_t vocab_size) {
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
    EXPECT_TRUE(got.raw_values[i] == want.raw_values[i] || !(want.raw_values[i] > -kSummaryInf));
  }
  if (want.target_logit == nullptr) return;
  EXPECT_TRUE(*got.target_logit == *want.target_logit || !(*want.target_logit > -kSummaryInf));
}

class DeviceSummary : public ::testing::Test {
 protected:
  void ExpectRecords(const Workload& workload, int tp);

  std::unique_ptr<Backend> backend_ = cuda::CudaBackend::Create({}).value();
};

// Every rank's records of every row.
void DeviceSummary::ExpectRecords(const Workload& workload, int tp) {
  const SamplerOptions options = {.vocab_size = workload.vocab_size,
                                  .eos_token_ids = workload.eos_token_ids};
  const ShardedSizes sizes = SummaryVocab(workload.vocab_size);
  const int num_slices = NumVocabSlices(tp) / tp;
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
    DeviceSummarizer& summarizer = *device->summarizer;
    DeviceInput input = DeviceInput::Create(*backend_, 1 << 20).value();
    std::vector<DeviceSummarizer::Offsets> offsets;
    summarizer.Begin();
    for (size_t i = 0; i < mine.rows().size(); ++i) {
      const RowShape shape = ShapeOf(mine.rows()[i], options, num_slices);
      offsets.push_back(
          summarizer.Add(static_cast<int64_t>(i), mine.rows()[i], shape, options.eos_token_ids));
    }
    const DeviceSummarizer::Packed group = summarizer.Pack(input);
    input.Upload();
    summarizer.Issue(group, device->logits.as<float>());
    std::vector<std::byte> results(static_cast<size_t>(group.bytes));
    backend_->CopyToHost(results.data(), summarizer.results(), group.bytes);
    for (size_t i = 0; i < mine.rows().size(); ++i) {
      SCOPED_TRACE(::testing::Message() << "rank " << rank << ", row " << i);
      const RowShape shape = ShapeOf(mine.rows()[i], options, num_slices);
      std::vector<std::byte> want_bytes(RecordBytes(shape));
      std::vector<std::byte> got_bytes(want_bytes);
      RowRecord want = RecordAt(shape, want_bytes.data());
      RowRecord got = RecordAt(shape, got_bytes.data());
      on_host.Summarize(mine.rows()[i], shape,
                        std::span(mine.logits()).subspan(i * vocab.size(), vocab.size()), want);
      const auto [processed, raw] = offsets[i];
      if (raw >= 0) summarizer.FillRaw(results.data() + raw, shape, vocab.begin, got);
      if (processed >= 0) {
        FillChoice(results.data() + group.raw_bytes + processed, num_slices, vocab, shape, got);
      }
      ExpectRecord(got, want);
    }
  }
}

TEST_F(DeviceSummary, RecordsAreTheHosts) {
  for (const int64_t vocab_size : {57, 100, 513, 1000, 2049}) {
    for (const int tp : {1, 2, 3, 8}) {
      SCOPED_TRACE(::testing::Message() << "vocabulary " << vocab_size << ", tp " << tp);
      const auto seed = static_cast<uint32_t>(vocab_size + tp);
      ExpectRecords(RandomWorkload(seed, vocab_size, 30), tp);
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

}  // namespace
}  // namespace lockstep
