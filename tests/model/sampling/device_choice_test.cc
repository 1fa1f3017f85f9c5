// Tokens chosen on a device (the emulation of CUDA) against those that the host chooses from the
// same summaries. (From the same logits: device_rows_test.cc.)

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "gtest/gtest.h"
#include "kernels/base/philox.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/token_choice.h"
#include "model/sampling/row_stats.h"
#include "model/sampling/token_choice.h"
#include "tests/model/sampling/sampling_workload.h"

namespace lockstep {
namespace {

using testing::OneOf;

constexpr float kChoiceInf = std::numeric_limits<float>::infinity();
constexpr float kChoiceNan = std::numeric_limits<float>::quiet_NaN();

// Rows as ranks could have summarised them, or worse.
struct Summaries {
  int num_ranks = 1;
  int num_slices = 8;  // of a rank
  int64_t part_width = 0;
  int64_t vocab_size = 0;
  std::vector<std::byte> bytes;  // [num_ranks, rank_bytes]
  int64_t rank_bytes = 0;
  std::vector<TokenChoiceJob> jobs;

  std::byte* At(int rank, const TokenChoiceJob& job) {
    return bytes.data() + rank * rank_bytes + job.summary;
  }
  int64_t SizeOfPart(int rank) const {
    return std::clamp<int64_t>(vocab_size - rank * part_width, 0, part_width);
  }
};

class SummaryWriter {
 public:
  explicit SummaryWriter(uint32_t seed) : random_(seed) {}

  Summaries Write(int num_ranks, int64_t vocab_size, int num_rows) {
    Summaries all;
    all.num_ranks = num_ranks;
    all.num_slices = 8 / std::min(num_ranks, 8);
    all.vocab_size = vocab_size;
    all.part_width = (vocab_size + num_ranks - 1) / num_ranks;
    for (int i = 0; i < num_rows; ++i) AddJob(all, i);
    all.bytes.resize(static_cast<size_t>(num_ranks * all.rank_bytes), std::byte{0xff});
    for (const TokenChoiceJob& job : all.jobs) {
      for (int rank = 0; rank < num_ranks; ++rank) WriteSummary(all, rank, job);
    }
    return all;
  }

 private:
  void AddJob(Summaries& all, int place) {
    const int32_t top_k = OneOf(random_, {0, 0, 1, 2, 5, 40, 256});
    const int32_t candidates =
        top_k > 0 ? top_k : static_cast<int32_t>(OneOf(random_, {256, 256, 4, 1}));
    TokenChoiceJob& job = all.jobs.emplace_back();
    job = {.summary = static_cast<int32_t>(all.rank_bytes),
           .num_largest = static_cast<int32_t>(std::min<int64_t>(candidates, all.vocab_size)),
           .inverse_temperature = OneOf(random_, {0.0f, 0.01f, 0.7f, 1.0f, 3.0f, 100.0f}),
           .top_k = top_k,
           .top_p = OneOf(random_, {1.0f, 1.0f, 0.9f, 0.3f, 1e-6f}),
           .min_p = OneOf(random_, {0.0f, 0.0f, 0.05f, 1.0f}),
           .seed = random_(),
           .position = random_() % 1000,
           .sequence_index = static_cast<uint32_t>(random_() % 3),
           .place = place};
    all.rank_bytes += LogitsSummaryBytes(all.num_slices, job.num_largest);
  }

  // Sharp, flat, on a grid for ties; some lists are empty or short though the part is not.
  void WriteSummary(Summaries& all, int rank, const TokenChoiceJob& job) {
    const int64_t part = all.SizeOfPart(rank);
    int64_t count = std::min<int64_t>(job.num_largest, part);
    if (random_() % 8 == 0) count = std::min<int64_t>(count, static_cast<int64_t>(random_() % 3));
    std::normal_distribution<float> normal(0.0f, OneOf(random_, {0.01f, 2.0f, 8.0f}));
    const bool on_grid = random_() % 3 == 0;
    std::vector<Candidate> list;
    for (int64_t i = 0; i < count; ++i) {
      const float value = normal(random_);
      list.push_back({.value = on_grid ? std::round(value) + 0.0f : value,
                      .token = static_cast<int32_t>(i * part / count)});
    }
    std::sort(list.begin(), list.end(), Before);
    auto* summary = new (all.At(rank, job)) LogitsSummary{static_cast<int32_t>(count), -0.5f};
    auto* slices = reinterpret_cast<LogitsSlice*>(summary + 1);
    const bool is_empty = list.empty();
    for (int i = 0; i < all.num_slices; ++i) {
      slices[i] = {is_empty ? -kChoiceInf : list[0].value - static_cast<float>(i),
                   is_empty ? 0.0 : 1.0 + static_cast<double>(random_() % 1000) / 7.0};
    }
    auto* largest = reinterpret_cast<LargestLogit*>(slices + all.num_slices);
    for (size_t i = 0; i < list.size(); ++i) {
      largest[i] = {list[i].value, list[i].value - 1.0f, list[i].token};
    }
  }

  std::mt19937 random_;
};

ChoiceRule RuleOf(const TokenChoiceJob& job, std::span<const SliceStats> stats) {
  std::vector<double> terms;
  const RowStats row = CombineStats(stats, job.inverse_temperature, terms);
  return {.inverse_temperature = job.inverse_temperature,
          .top_k = job.top_k,
          .top_p = job.top_p,
          .min_p = job.min_p,
          .uniform = TokenUniform(job.seed, job.sequence_index, job.position),
          .max = row.max,
          .total = row.sum};
}

// As VocabSampler goes about it.
std::optional<int32_t> ChooseOnHost(Summaries& all, const TokenChoiceJob& job) {
  MergedCandidates merged;
  std::vector<std::vector<Candidate>> lists(static_cast<size_t>(all.num_ranks));
  std::vector<SliceStats> stats;
  for (int rank = 0; rank < all.num_ranks; ++rank) {
    const auto* summary = reinterpret_cast<const LogitsSummary*>(all.At(rank, job));
    const auto* slices = reinterpret_cast<const LogitsSlice*>(summary + 1);
    const auto* largest = reinterpret_cast<const LargestLogit*>(slices + all.num_slices);
    for (int i = 0; i < all.num_slices; ++i) stats.push_back({slices[i].max, slices[i].sum});
    std::vector<Candidate>& list = lists[static_cast<size_t>(rank)];
    for (int32_t i = 0; i < summary->count; ++i) {
      list.push_back({.value = largest[i].value,
                      .token = static_cast<int32_t>(rank * all.part_width) + largest[i].index});
    }
    merged.Add(
        {.candidates = list,
         .cut = summary->count == job.num_largest && job.num_largest < all.SizeOfPart(rank)});
  }
  if (job.inverse_temperature == 0.0f) {
    const std::optional<Candidate> largest = merged.Next();
    return largest.has_value() ? largest->token : 0;
  }
  TokenChooser chooser;
  return chooser.Choose(merged, RuleOf(job, stats));
}

int32_t ChooseFromRow(Summaries& all, const TokenChoiceJob& job, std::span<const float> logits) {
  const auto* slices = reinterpret_cast<const LogitsSlice*>(
      reinterpret_cast<const LogitsSummary*>(all.At(0, job)) + 1);
  std::vector<SliceStats> stats;
  for (int i = 0; i < all.num_slices; ++i) stats.push_back({slices[i].max, slices[i].sum});
  WholeRow row;
  row.Reset(logits);
  TokenChooser chooser;
  return chooser.Choose(row, RuleOf(job, stats)).value();
}

class DeviceChoice : public ::testing::Test {
 protected:
  template <typename T>
  DeviceBuffer OnDevice(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    DeviceBuffer buffer = backend_->Allocate(bytes).value();
    backend_->CopyToDevice(buffer.data(), values.data(), bytes);
    return buffer;
  }

  // kept: [rows, part_width].
  std::vector<ChosenToken> Choose(const Summaries& all, const std::vector<float>& rows = {},
                                  const std::vector<float>& kept = {}) {
    const DeviceBuffer logits = OnDevice(rows);
    const DeviceBuffer kept_rows = OnDevice(kept);
    const DeviceBuffer bytes = OnDevice(all.bytes);
    const DeviceBuffer jobs = OnDevice(all.jobs);
    std::vector<ChosenToken> chosen(all.jobs.size(), ChosenToken{-7, kChoiceNan});
    const DeviceBuffer out = OnDevice(chosen);
    backend_->ChooseTokens({.summaries = bytes.as<std::byte>(),
                            .rank_stride = all.rank_bytes,
                            .num_ranks = all.num_ranks,
                            .num_slices = all.num_slices,
                            .part_width = all.part_width,
                            .vocab_size = all.vocab_size,
                            .jobs = jobs.as<TokenChoiceJob>(),
                            .num_jobs = static_cast<int>(all.jobs.size()),
                            .logits = logits.as<float>(),
                            .kept = kept_rows.as<float>(),
                            .kept_rows = std::ssize(kept) / all.part_width,
                            .chosen = out.as<ChosenToken>()});
    backend_->CopyToHost(chosen.data(), out.data(), out.bytes());
    return chosen;
  }

  // How many were undecided.
  int ExpectTheHosts(Summaries all) {
    const std::vector<ChosenToken> chosen = Choose(all);
    int num_undecided = 0;
    for (size_t i = 0; i < chosen.size(); ++i) {
      const std::optional<int32_t> want = ChooseOnHost(all, all.jobs[i]);
      num_undecided += want.has_value() ? 0 : 1;
      EXPECT_EQ(chosen[i].token, want.value_or(kUndecidedToken)) << "row " << i;
    }
    return num_undecided;
  }

  std::unique_ptr<Backend> backend_ = cuda::CudaBackend::Create({}).value();
};

TEST_F(DeviceChoice, IsTheHostsFromTheSameSummaries) {
  int num_undecided = 0;
  for (const int num_ranks : {1, 2, 4, 8}) {
    for (const int64_t vocab_size : {1, 7, 100, 700, 100000}) {
      SCOPED_TRACE(::testing::Message() << num_ranks << " ranks, vocabulary " << vocab_size);
      SummaryWriter writer(static_cast<uint32_t>(num_ranks + vocab_size));
      num_undecided += ExpectTheHosts(writer.Write(num_ranks, vocab_size, 200));
    }
  }
  EXPECT_GT(num_undecided, 50);
}

TEST_F(DeviceChoice, TellsTheLogitBeforeAdjustments) {
  SummaryWriter writer(5);
  Summaries all = writer.Write(2, 1000, 60);
  const std::vector<ChosenToken> chosen = Choose(all);
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i].token == kUndecidedToken) continue;
    const auto rank = static_cast<int>(chosen[i].token / all.part_width);
    const auto* summary = reinterpret_cast<const LogitsSummary*>(all.At(rank, all.jobs[i]));
    const auto* slices = reinterpret_cast<const LogitsSlice*>(summary + 1);
    const auto* largest = reinterpret_cast<const LargestLogit*>(slices + all.num_slices);
    const auto* found = std::find_if(largest, largest + summary->count, [&](auto& logit) {
      return logit.index == chosen[i].token % all.part_width;
    });
    EXPECT_EQ(chosen[i].raw, found == largest + summary->count ? summary->told : found->raw);
  }
}

TEST_F(DeviceChoice, IsUndecidedBeyondTheCandidatesItTakes) {
  SummaryWriter writer(6);
  Summaries all = writer.Write(4, 1000, 3);
  all.jobs[0].num_largest = kMaxChoiceCandidates / 4 + 1;
  EXPECT_EQ(Choose(all)[0].token, kUndecidedToken);
}

// Rows of one rank whose summaries, of few logits, end too early. Every other one is also kept, and
// counts as adjusted: raw logits are less by 1, and kept, too.
struct WholeRows {
  Summaries summaries;
  std::vector<float> logits;  // [rows, vocab]
  std::vector<float> kept;

  void Keep(std::span<const float> row, float change) {
    for (const float logit : row) kept.push_back(logit + change);
    kept.resize(kept.size() + summaries.part_width - row.size(), kChoiceNan);
  }
};

WholeRows MakeWholeRows(uint32_t seed, int64_t vocab_size, int num_rows) {
  std::mt19937 random(seed);
  WholeRows rows;
  Summaries& all = rows.summaries;
  all.vocab_size = vocab_size;
  all.part_width = vocab_size + 3;
  for (int i = 0; i < num_rows; ++i) {
    const int32_t most = OneOf(random, {1, 4, 256});
    all.jobs.push_back({.summary = static_cast<int32_t>(all.rank_bytes),
                        .num_largest = static_cast<int32_t>(std::min<int64_t>(most, vocab_size)),
                        .inverse_temperature = OneOf(random, {0.01f, 0.3f, 1.0f, 2.0f}),
                        .top_k = OneOf(random, {0, 0, 2, 300, 1500}),
                        .top_p = OneOf(random, {1.0f, 1.0f, 0.999f, 0.9f}),
                        .min_p = OneOf(random, {0.0f, 0.0f, 1e-4f, 0.05f}),
                        .seed = random(),
                        .position = 5,
                        .place = i,
                        .row = i % 2 == 0 ? i : -1,
                        .kept_row = i % 2 == 0 ? -1 : i - 1,
                        .kept_raw_row = i % 2 == 0 ? -1 : i});
    all.rank_bytes += LogitsSummaryBytes(all.num_slices, all.jobs.back().num_largest);
    std::vector<float> row = testing::RandomRow(random, vocab_size);
    for (int n = 0; n < 3 && i % 4 == 0; ++n) {
      row[random() % row.size()] = OneOf(random, {kChoiceNan, -kChoiceInf, -0.0f});
    }
    rows.logits.insert(rows.logits.end(), row.begin(), row.end());
    if (i % 2 == 0) continue;
    rows.Keep(row, 0.0f);
    rows.Keep(row, -1.0f);
  }
  all.bytes.resize(static_cast<size_t>(all.rank_bytes));
  for (const TokenChoiceJob& job : all.jobs) {
    const std::span<const float> row(rows.logits.data() + job.place * vocab_size, vocab_size);
    const float change = job.row < 0 ? -1.0f : 0.0f;
    std::vector<Candidate> list;
    SelectLargest(row, 0, job.num_largest, list);
    auto* summary = new (all.At(0, job)) LogitsSummary{static_cast<int32_t>(list.size()), -0.5f};
    auto* slices = reinterpret_cast<LogitsSlice*>(summary + 1);
    for (int i = 0; i < all.num_slices; ++i) slices[i] = {-kChoiceInf, 0.0};
    const Candidate largest = LargestOf(row);
    // Every third total is more than all weights in turn, as a rounding may make it, but by much.
    const double excess = job.place % 3 == 0 ? 3.0 : 1.0;
    slices[2] = {largest.value, excess * SumOfExps(row, largest.value, job.inverse_temperature)};
    auto* logits = reinterpret_cast<LargestLogit*>(slices + all.num_slices);
    for (const Candidate& logit : list) {
      *logits++ = {logit.value, logit.value + change, logit.token};
    }
  }
  return rows;
}

TEST_F(DeviceChoice, GoesOnInWholeRowsAsTheHostDoes) {
  int num_beyond = 0;
  for (const int64_t vocab_size : {2, 300, 1024, 1025, 3000}) {
    WholeRows rows = MakeWholeRows(static_cast<uint32_t>(vocab_size), vocab_size, 20);
    const std::vector<ChosenToken> chosen = Choose(rows.summaries, rows.logits, rows.kept);
    for (const TokenChoiceJob& job : rows.summaries.jobs) {
      SCOPED_TRACE(::testing::Message() << "row " << job.place << " of " << vocab_size);
      num_beyond += ChooseOnHost(rows.summaries, job).has_value() ? 0 : 1;
      const std::span<const float> row(rows.logits.data() + job.place * vocab_size, vocab_size);
      const ChosenToken& got = chosen[static_cast<size_t>(job.place)];
      ASSERT_EQ(got.token, ChooseFromRow(rows.summaries, job, row));
      EXPECT_TRUE(got.raw == row[got.token] + (job.row < 0 ? -1.0f : 0.0f) ||
                  !(row[got.token] > -kChoiceInf));
    }
  }
  EXPECT_GT(num_beyond, 25);
}

TEST_F(DeviceChoice, ChosenTokensBecomeTheNextInput) {
  const DeviceBuffer chosen = OnDevice(std::vector<ChosenToken>{{11, 0.0f}, {22, 0.0f}});
  const DeviceBuffer sources = OnDevice(std::vector<int32_t>{-1, 1, 0, -1, 1});
  std::vector<int32_t> ids = {1, 2, 3, 4, 5};
  const DeviceBuffer device_ids = OnDevice(ids);
  backend_->TakeChosenTokens(chosen.as<ChosenToken>(), sources.as<int32_t>(), 5,
                             device_ids.as<int32_t>());
  backend_->CopyToHost(ids.data(), device_ids.data(), device_ids.bytes());
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 22, 11, 4, 22}));
}

}  // namespace
}  // namespace lockstep
