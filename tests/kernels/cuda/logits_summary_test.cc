// Summaries of logits against sorting and adding in double precision, over sizes that segments and
// vectors fit and do not fit.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/device_array.h"

namespace lockstep::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Rows {
  int64_t width = 0;
  int num_slices = 8;
  std::vector<float> logits;  // [rows, width]
  std::vector<LogitsJob> jobs;
  std::vector<LogitAdjustment> adjustments;
  std::vector<ChosenToken> chosen;
  int64_t first_token = 0;

  int64_t slice_width() const { return (width + num_slices - 1) / num_slices; }
};

struct Summary {
  LogitsSummary head;
  std::vector<LogitsSlice> slices;
  std::vector<LargestLogit> largest;
  std::vector<float> kept;  // every other job's row, as it was summarised
};

std::vector<Summary> SummarizeOnDevice(Rows rows, int shift = 0) {
  int64_t bytes = 0;
  int32_t max_largest = 0;
  for (LogitsJob& job : rows.jobs) {
    job.out_offset = static_cast<int32_t>(bytes);
    bytes += LogitsSummaryBytes(rows.num_slices, job.num_largest);
    max_largest = std::max(max_largest, job.num_largest);
    const auto index = static_cast<int32_t>(&job - rows.jobs.data());
    job.kept = index % 2 == 1 ? index / 2 : -1;
  }
  const auto num_jobs = static_cast<int>(rows.jobs.size());
  const DeviceArray<float> logits(rows.logits, shift);
  const DeviceArray<LogitsJob> jobs(rows.jobs);
  const DeviceArray<LogitAdjustment> adjustments(rows.adjustments);
  const DeviceArray<ChosenToken> chosen(rows.chosen);
  const DeviceArray<std::byte> workspace(
      LogitsWorkspaceBytes(rows.slice_width(), rows.num_slices, num_jobs, max_largest));
  const DeviceArray<std::byte> out(bytes);
  const int64_t kept_width = rows.num_slices * rows.slice_width();
  const DeviceArray<float> kept(std::max<int64_t>(1, num_jobs / 2 * kept_width));
  EXPECT_EQ(cuda::LaunchSummarizeLogits({.logits = logits.data(),
                                         .width = rows.width,
                                         .first_token = rows.first_token,
                                         .slice_width = rows.slice_width(),
                                         .num_slices = rows.num_slices,
                                         .jobs = jobs.data(),
                                         .num_jobs = num_jobs,
                                         .max_largest = max_largest,
                                         .adjustments = adjustments.data(),
                                         .chosen = chosen.data(),
                                         .workspace = workspace.data(),
                                         .out = out.data(),
                                         .kept = kept.data()},
                                        nullptr),
            cudaSuccess);
  const std::vector<std::byte> read = out.Read();
  const std::vector<float> rows_kept = kept.Read();
  workspace.Read();
  std::vector<Summary> summaries;
  for (const LogitsJob& job : rows.jobs) {
    const std::byte* at = read.data() + job.out_offset;
    Summary& summary = summaries.emplace_back();
    std::memcpy(&summary.head, at, sizeof(LogitsSummary));
    summary.slices.resize(rows.num_slices);
    at += sizeof(LogitsSummary);
    std::memcpy(summary.slices.data(), at, rows.num_slices * sizeof(LogitsSlice));
    at += rows.num_slices * sizeof(LogitsSlice);
    summary.largest.resize(std::clamp(summary.head.count, 0, job.num_largest));
    if (!summary.largest.empty()) {
      std::memcpy(summary.largest.data(), at, summary.largest.size() * sizeof(LargestLogit));
    }
    if (job.kept < 0) continue;
    const auto first = rows_kept.begin() + job.kept * kept_width;
    summary.kept.assign(first, first + rows.width);
  }
  return summaries;
}

float Clean(float x) {
  return std::isnan(x) ? -kInf : std::min(x, std::numeric_limits<float>::max());
}

std::vector<float> Adjusted(const Rows& rows, const LogitsJob& job) {
  const auto first = rows.logits.begin() + job.row * rows.width;
  std::vector<float> row(first, first + rows.width);
  std::transform(row.begin(), row.end(), row.begin(), Clean);
  const LogitAdjustment* next = rows.adjustments.data() + job.first_adjustment;
  for (int i = 0; i < job.num_biases; ++i, ++next) {
    row[next->index] = Clean(row[next->index] + next->amount);
  }
  std::map<int64_t, float> counts;
  for (int i = 0; i < job.num_penalties; ++i, ++next) counts[next->index] = next->amount;
  if (job.uncounted >= 0) counts[rows.chosen[job.uncounted].token - rows.first_token] += 1.0f;
  for (const auto& [index, count] : counts) {
    if (index < 0 || index >= rows.width) continue;  // another rank's
    float& x = row[index];
    x = Clean(x > 0 ? x / job.repetition_penalty : x * job.repetition_penalty);
    if (count == 0.0f) continue;
    x -= job.frequency_penalty * count;
    x = Clean(x - job.presence_penalty);
  }
  for (int i = 0; i < job.num_masks; ++i, ++next) row[next->index] = -kInf;
  if (job.first_allowed < 0) return row;
  std::vector<uint32_t> words(2 * AllowedAdjustments(rows.width));
  std::memcpy(words.data(), rows.adjustments.data() + job.first_allowed,
              words.size() * sizeof(uint32_t));
  for (int64_t i = 0; i < rows.width; ++i) {
    if ((words[i / 32] >> (i % 32) & 1) == 0) row[i] = -kInf;
  }
  return row;
}

void ExpectSlices(const Rows& rows, const LogitsJob& job, const std::vector<float>& row,
                  const Summary& got) {
  for (int64_t slice = 0; slice < rows.num_slices; ++slice) {
    const int64_t begin = std::min(slice * rows.slice_width(), rows.width);
    const int64_t end = std::min(begin + rows.slice_width(), rows.width);
    double max = -kInf;
    for (int64_t i = begin; i < end; ++i) max = std::max<double>(max, row[i]);
    ASSERT_EQ(got.slices[slice].max, max) << "slice " << slice;
    double sum = 0;
    for (int64_t i = begin; i < end && max > -kInf && job.inverse_temperature != 0; ++i) {
      sum += std::exp((double{row[i]} - max) * job.inverse_temperature);
    }
    ASSERT_NEAR(got.slices[slice].sum, sum, 1e-5 * sum) << "slice " << slice;
  }
}

void ExpectLargest(const Rows& rows, const LogitsJob& job, const std::vector<float>& row,
                   const Summary& got) {
  std::vector<int32_t> order;
  for (int32_t i = 0; i < rows.width; ++i) {
    if (row[i] > -kInf) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return row[a] > row[b]; });
  order.resize(std::min<size_t>(order.size(), job.num_largest));
  ASSERT_EQ(got.head.count, static_cast<int32_t>(order.size()));
  for (size_t i = 0; i < order.size(); ++i) {
    ASSERT_EQ(got.largest[i].index, order[i]) << "place " << i;
    ASSERT_EQ(got.largest[i].value, row[order[i]]) << "place " << i;
    ASSERT_EQ(got.largest[i].raw, Clean(rows.logits[job.row * rows.width + order[i]]));
  }
  ASSERT_EQ(got.head.told,
            job.told_index < 0 ? -kInf : Clean(rows.logits[job.row * rows.width + job.told_index]));
}

void ExpectSummaries(const Rows& rows, int shift = 0) {
  SCOPED_TRACE(::testing::Message() << "width " << rows.width << ", slices " << rows.num_slices);
  const std::vector<Summary> got = SummarizeOnDevice(rows, shift);
  for (size_t i = 0; i < rows.jobs.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "job " << i);
    const std::vector<float> row = Adjusted(rows, rows.jobs[i]);
    ASSERT_NO_FATAL_FAILURE(ExpectSlices(rows, rows.jobs[i], row, got[i]));
    ASSERT_NO_FATAL_FAILURE(ExpectLargest(rows, rows.jobs[i], row, got[i]));
    if (i % 2 == 1) {
      ASSERT_EQ(got[i].kept, row);
    }
  }
}

class CudaLogitsSummary : public ::testing::Test {
 protected:
  // Values as they are, on a grid (ties), nearly all equal, and with what is no number.
  std::vector<float> Row(int64_t width, int kind) {
    std::normal_distribution<float> normal(0.0f, 3.0f);
    std::vector<float> row(width);
    for (float& x : row) {
      x = normal(random_);
      if (kind == 1) x = std::round(x);
      if (kind == 2) x = random_() % 50 == 0 ? 2.0f : (random_() % 2 == 0 ? 0.0f : -0.0f);
      if (kind == 3) x = OneOf({x, x, kNan, -kInf, kInf});
      if (kind == 4) x = OneOf({kNan, -kInf});
    }
    return row;
  }
  float OneOf(std::initializer_list<float> values) {
    return *(values.begin() + random_() % values.size());
  }
  int32_t Index(int64_t width) { return static_cast<int32_t>(random_() % width); }

  Rows MakeRows(int64_t width, int num_slices, const std::vector<int32_t>& wanted) {
    Rows rows{.width = width,
              .num_slices = num_slices,
              .logits = {},
              .jobs = {},
              .adjustments = {},
              .chosen = {}};
    for (int kind = 0; kind < 5; ++kind) {
      const std::vector<float> row = Row(width, kind);
      rows.logits.insert(rows.logits.end(), row.begin(), row.end());
      rows.jobs.push_back({.row = kind,
                           .num_largest = wanted[random_() % wanted.size()],
                           .told_index = Index(width + 1) - 1,
                           .inverse_temperature = OneOf({0.0f, 1.0f, 0.01f, 100.0f})});
    }
    return rows;
  }

  // Some of a job's tokens, each once, in any order.
  int32_t AddAdjustments(Rows& rows, int64_t count, std::initializer_list<float> amounts) {
    std::vector<int32_t> indices(rows.width);
    std::iota(indices.begin(), indices.end(), 0);
    std::shuffle(indices.begin(), indices.end(), random_);
    indices.resize(std::min(count, rows.width));
    for (const int32_t index : indices) rows.adjustments.push_back({index, OneOf(amounts)});
    return static_cast<int32_t>(indices.size());
  }
  void Adjust(Rows& rows, LogitsJob& job, int64_t count) {
    job.first_adjustment = static_cast<int32_t>(rows.adjustments.size());
    job.num_biases = AddAdjustments(rows, count, {-100.0f, 0.3f, 100.0f});
    job.num_penalties = AddAdjustments(rows, count, {0.0f, 1.0f, 3.0f});
    job.num_masks = AddAdjustments(rows, count / 2, {0.0f});
    job.repetition_penalty = OneOf({1.0f, 1.3f, 0.7f});
    job.frequency_penalty = OneOf({0.0f, 0.4f, -1.1f});
    job.presence_penalty = OneOf({0.0f, 0.7f, -2.0f});
  }

  // Of few tokens, or of most.
  void Allow(Rows& rows, LogitsJob& job) {
    job.first_allowed = static_cast<int32_t>(rows.adjustments.size());
    const uint32_t one_in = random_() % 2 == 0 ? 2 : 50;
    for (int64_t i = 0; i < AllowedAdjustments(rows.width); ++i) {
      std::array<uint32_t, 2> words = {};
      for (int bit = 0; bit < 64; ++bit) {
        if (random_() % one_in == 0) words[bit / 32] |= uint32_t{1} << (bit % 32);
      }
      rows.adjustments.push_back(std::bit_cast<LogitAdjustment>(words));
    }
  }

  std::mt19937 random_{3};
};

TEST_F(CudaLogitsSummary, EqualsSortingAndAdding) {
  for (const int64_t width : {1, 2, 3, 4, 7, 8, 9, 31, 33, 64, 255, 256, 257, 512, 1000, 2049}) {
    for (const int num_slices : {1, 3, 8}) {
      for (const int shift : {0, 1}) {
        ExpectSummaries(MakeRows(width, num_slices, {0, 1, 2, 20, 256}), shift);
      }
    }
  }
}

TEST_F(CudaLogitsSummary, RowsOfManySegments) {
  for (const int64_t width : {32003, 128256}) {
    for (const int num_slices : {1, 8}) ExpectSummaries(MakeRows(width, num_slices, {1, 20, 256}));
  }
}

TEST_F(CudaLogitsSummary, AdjustsBeforeItSelects) {
  for (const int64_t width : {1, 5, 300, 2048, 20001}) {
    Rows rows = MakeRows(width, 8, {1, 20, 256});
    for (LogitsJob& job : rows.jobs) Adjust(rows, job, 1 + Index(600));
    rows.jobs.push_back({.row = 0, .num_largest = 5, .inverse_temperature = 1.0f});  // raw, too
    ExpectSummaries(rows);
  }
}

TEST_F(CudaLogitsSummary, SelectsAmongWhatIsAllowed) {
  for (const int64_t width : {1, 31, 32, 33, 64, 65, 300, 4097, 20001}) {
    Rows rows = MakeRows(width, 8, {1, 20, 256});
    for (size_t i = 0; i < rows.jobs.size(); ++i) {
      if (i % 2 == 0) Adjust(rows, rows.jobs[i], 1 + Index(100));
      Allow(rows, rows.jobs[i]);
    }
    ExpectSummaries(rows);
  }
}

TEST_F(CudaLogitsSummary, PenaltiesCountAChosenTokenOnceMore) {
  for (const int64_t width : {5, 300, 9001}) {
    Rows rows = MakeRows(width, 8, {1, 20, 256});
    rows.first_token = 700;
    for (LogitsJob& job : rows.jobs) {
      Adjust(rows, job, 1 + Index(600));
      const int32_t listed = rows.adjustments[job.first_adjustment + job.num_biases].index;
      const int32_t tokens[] = {700 + listed, 700 + Index(width), 3,
                                static_cast<int32_t>(700 + width), kUndecidedToken};
      job.uncounted = static_cast<int32_t>(rows.chosen.size());
      rows.chosen.push_back({tokens[rows.chosen.size()], 0.0f});
    }
    rows.jobs.push_back(rows.jobs[0]);  // without a list
    rows.jobs.back().num_biases = rows.jobs.back().num_penalties = rows.jobs.back().num_masks = 0;
    ExpectSummaries(rows);
  }
}

}  // namespace
}  // namespace lockstep::testing
