#include "model/sampling/device_choice.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

static_assert(sizeof(TokenChoiceJob) % 8 == 0 && sizeof(ChosenToken) % 8 == 0);

constexpr int64_t kFloat = sizeof(float);

int64_t RawBytes(int num_slices) {
  return LogitsSummaryBytes(num_slices, SamplingParams::kMaxLogprobs);
}

// On the device; of a single rank the last three are not needed.
struct BufferBytes {
  int64_t chosen = 0;  // of a call
  int64_t kept = 0;
  int64_t gathered = 0;
  int64_t received = 0;
  int64_t shared = 0;
};
BufferBytes BytesOfBuffers(const ChoiceGroups::Options& options) {
  constexpr int64_t kToken = sizeof(ChosenToken);
  const int64_t tp = options.tp;
  const int num_slices = NumVocabSlices(options.tp) / options.tp;
  const int64_t part_width =
      num_slices * VocabSlice(VocabSizes(options.vocab_size), options.tp, 0).size();
  BufferBytes bytes;
  bytes.chosen = (options.max_rows + ChoiceGroups::NumSparePlaces(options)) * kToken;
  bytes.kept = tp * options.limits.kept_rows * part_width * kFloat;
  if (tp == 1) return bytes;
  bytes.gathered = tp * std::min(options.max_rows, options.limits.rows) *
                   (RawBytes(num_slices) + LogitsSummaryBytes(num_slices, kMaxLargestLogits));
  bytes.received = bytes.kept;
  bytes.shared = tp * options.limits.kept_rows * kToken;
  return bytes;
}

}  // namespace

DeviceChooser::DeviceChooser(Backend& backend, int64_t vocab_size, Communicator& tp,
                             int64_t max_rows, const DeviceChooserOptions& options)
    : backend_(backend), tp_(tp), options_(options), vocab_size_(vocab_size), max_rows_(max_rows) {}

absl::StatusOr<std::unique_ptr<DeviceChooser>> DeviceChooser::Create(
    Backend& backend, int64_t vocab_size, Communicator& tp, int64_t max_rows,
    const DeviceChooserOptions& options) {
  std::unique_ptr<DeviceChooser> chooser(
      new DeviceChooser(backend, vocab_size, tp, max_rows, options));
  ASSIGN_OR_RETURN(chooser->groups_, ChoiceGroups::Create(backend, {.vocab_size = vocab_size,
                                                                    .tp = tp.size(),
                                                                    .tp_rank = tp.rank(),
                                                                    .max_rows = max_rows,
                                                                    .limits = options.limits}));
  RETURN_IF_ERROR(chooser->Allocate());
  RETURN_IF_ERROR(chooser->WarmUp());
  return chooser;
}

int64_t DeviceChooser::MaxRows(int64_t max_batched_tokens, int64_t max_num_seqs) {
  // Results of so many rows of 8 ranks take 9 MB of pinned memory; 69 MB if it were 16,384.
  constexpr int64_t kMostRowsAhead = 2048;
  return std::min(max_batched_tokens, std::max(max_num_seqs, kMostRowsAhead));
}

int64_t DeviceChooser::DeviceBytes(const ChoiceGroups::Options& options) {
  const BufferBytes bytes = BytesOfBuffers(options);
  return kMaxInFlight * bytes.chosen + bytes.kept + bytes.gathered + bytes.received + bytes.shared +
         ChoiceGroups::DeviceBytes(options);
}

absl::Status DeviceChooser::Allocate() {
  const int64_t tp = tp_.size();
  const BufferBytes bytes = BytesOfBuffers(groups_->options());
  for (Call& call : calls_) {
    ASSIGN_OR_RETURN(call.chosen, backend_.Allocate(bytes.chosen));
    ASSIGN_OR_RETURN(call.results,
                     backend_.AllocateOnHost(chosen_bytes() +
                                             tp * max_rows_ * RawBytes(summaries().num_slices())));
    ASSIGN_OR_RETURN(call.mark, backend_.MakeMark());
    call.rows.reserve(static_cast<size_t>(max_rows_));
  }
  ASSIGN_OR_RETURN(kept_, backend_.Allocate(bytes.kept));
  if (tp == 1) return absl::OkStatus();
  ASSIGN_OR_RETURN(gathered_, backend_.Allocate(bytes.gathered));
  ASSIGN_OR_RETURN(received_, backend_.Allocate(bytes.received));
  ASSIGN_OR_RETURN(shared_, backend_.Allocate(bytes.shared));
  return absl::OkStatus();
}

// Kernels may be loaded when they are first used. By this rank alone: when it comes back to others,
// those have long done so.
absl::Status DeviceChooser::WarmUp() {
  const int64_t width = summaries().part_width();
  ASSIGN_OR_RETURN(const DeviceBuffer logits, backend_.Allocate(width * kFloat));
  ASSIGN_OR_RETURN(const DeviceBuffer indices, backend_.Allocate(2 * int64_t{sizeof(int32_t)}));
  const std::vector<std::byte> zeros(
      static_cast<size_t>(std::max(logits.bytes(), indices.bytes())));
  backend_.CopyToDevice(logits.data(), zeros.data(), logits.bytes());
  backend_.CopyToDevice(indices.data(), zeros.data(), indices.bytes());
  // Its summary ends before it is chosen.
  SamplingParams params;
  params.top_k = 2;
  const TokenHistory history;
  const LogitsRow row = {.params = &params, .history = &history};
  const RowShape shape = {.chooses = true, .adjusted = true, .num_candidates = 1};
  groups_->Begin({{&row, 1}, {&shape, 1}, {}}, {.kept = kept_.as<float>()});
  const ChoiceGroup group = groups_->PackNext().front();
  summaries().Issue(group.summaries, logits.as<float>());
  TokenChoiceArgs args = ChoiceArgs(group, summaries().results(), logits.as<float>());
  args.num_ranks = 1;
  args.vocab_size = std::min(width, vocab_size_);
  if (args.kept != nullptr) args.kept = kept_.as<float>();
  auto* chosen = calls_[0].chosen.as<ChosenToken>();
  args.chosen = chosen;
  backend_.ChooseTokens(args);
  auto* index = indices.as<int32_t>();
  if (tp_.size() > 1) {
    backend_.GatherRows(chosen, index, 1, sizeof(ChosenToken), shared_.data());
    backend_.PlaceChosenTokens(shared_.as<ChosenToken>(), index, 1, chosen);
  }
  backend_.TakeChosenTokens(chosen, index, 1, index + 1);
  backend_.Synchronize();
  return absl::OkStatus();
}

DeviceChooser::Call& DeviceChooser::oldest() {
  LS_CHECK(num_done_ < num_issued_) << "no call is in flight";
  return calls_[IndexOf(num_done_)];
}

bool DeviceChooser::DecidesAll(const ChoiceRows& rows) const {
  if (std::ssize(rows.rows) > max_rows_) return false;
  for (size_t i = 0; i < rows.rows.size(); ++i) {
    if (!groups_->TakesRow(rows.rows[i], rows.shapes[i], rows.eos_token_ids)) return false;
  }
  return true;
}

absl::Status DeviceChooser::Issue(const ChoiceRows& rows, const LogitsTiles& tiles) {
  LS_CHECK(num_issued_ - num_done_ < kMaxInFlight) << "too many calls in flight";
  const auto num_rows = static_cast<int64_t>(rows.rows.size());
  Call& call = calls_[IndexOf(num_issued_)];
  groups_->Begin(
      rows, {.tile_rows = tiles.max_rows, .chosen = chosen_on_device(), .kept = kept_.as<float>()});
  const float* logits = nullptr;
  for (auto groups = groups_->PackNext(); !groups.empty(); groups = groups_->PackNext()) {
    for (const ChoiceGroup& group : groups) {
      const int64_t first = group.rows.begin;
      if (first % tiles.max_rows == 0) {
        ASSIGN_OR_RETURN(logits, tiles.logits(first, std::min(tiles.max_rows, num_rows - first)));
      }
      RETURN_IF_ERROR(IssueGroup(group, logits, call));
    }
  }
  backend_.StartCopyToHost(call.results.data(), call.chosen.data(),
                           groups_->num_choosing() * int64_t{sizeof(ChosenToken)});
  call.rows.assign(groups_->rows().begin(), groups_->rows().end());
  call.mark->Set();
  decides_all_ = groups_->took_all();
  ++num_issued_;
  return absl::OkStatus();
}

absl::Status DeviceChooser::IssueGroup(const ChoiceGroup& group, const float* logits, Call& call) {
  summaries().Issue(group.summaries, logits);
  ASSIGN_OR_RETURN(const std::byte* summaries, GatherSummaries(group));
  RETURN_IF_ERROR(ExchangeKept(group));
  TokenChoiceArgs args = ChoiceArgs(group, summaries, logits);
  args.chosen = call.chosen.as<ChosenToken>();
  backend_.ChooseTokens(args);
  RETURN_IF_ERROR(ShareChoices(group, call.chosen.as<ChosenToken>()));
  StartRawCopies(group, summaries, call);
  return absl::OkStatus();
}

TokenChoiceArgs DeviceChooser::ChoiceArgs(const ChoiceGroup& group, const std::byte* summaries,
                                          const float* logits) {
  const DeviceBuffer& kept = tp_.size() == 1 ? kept_ : received_;
  return {.summaries = summaries + group.summaries.raw_bytes,
          .rank_stride = group.summaries.bytes,
          .num_ranks = tp_.size(),
          .num_slices = this->summaries().num_slices(),
          .part_width = this->summaries().part_width(),
          .vocab_size = vocab_size_,
          .jobs = group.jobs,
          .num_jobs = group.num_jobs,
          .logits = group.goes_on_here ? logits : nullptr,
          .kept = group.kept_rows > 0 ? kept.as<float>() : nullptr,
          .kept_rows = group.gathers_kept ? group.kept_rows : options_.limits.kept_rows};
}

absl::StatusOr<const std::byte*> DeviceChooser::GatherSummaries(const ChoiceGroup& group) {
  const int64_t bytes = group.summaries.bytes;
  if (tp_.size() == 1 || bytes == 0) return summaries().results();
  RETURN_IF_ERROR(tp_.AllGather(summaries().results(), bytes, gathered_.data()));
  return gathered_.as<std::byte>();
}

absl::Status DeviceChooser::ExchangeKept(const ChoiceGroup& group) {
  if (tp_.size() == 1 || group.kept_rows == 0) return absl::OkStatus();
  const int64_t row_bytes = summaries().part_width() * kFloat;
  const int64_t bytes = group.kept_rows * row_bytes;
  if (group.gathers_kept) return tp_.AllGather(kept_.data(), bytes, received_.data());
  return tp_.AllToAll(kept_.data(), bytes, options_.limits.kept_rows * row_bytes, received_.data());
}

absl::Status DeviceChooser::ShareChoices(const ChoiceGroup& group, ChosenToken* chosen) {
  if (group.num_shared == 0) return absl::OkStatus();
  constexpr int64_t kBytes = sizeof(ChosenToken);
  const int64_t first = tp_.rank() * group.num_shared;
  ChosenToken* const mine = shared_.as<ChosenToken>() + first;
  backend_.GatherRows(chosen, group.places + first, group.num_shared, kBytes, mine);
  RETURN_IF_ERROR(tp_.AllGather(mine, group.num_shared * kBytes, shared_.data()));
  backend_.PlaceChosenTokens(shared_.as<ChosenToken>(), group.places, tp_.size() * group.num_shared,
                             chosen);
  return absl::OkStatus();
}

void DeviceChooser::StartRawCopies(const ChoiceGroup& group, const std::byte* summaries,
                                   Call& call) {
  const int64_t bytes = group.summaries.raw_bytes;
  auto* raw = call.results.as<std::byte>() + chosen_bytes() + group.raw_offset;
  for (int rank = 0; rank < tp_.size(); ++rank) {
    backend_.StartCopyToHost(raw + rank * bytes, summaries + rank * group.summaries.bytes, bytes);
  }
}

absl::Status DeviceChooser::Wait() {
  oldest().mark->WaitUntilReached();
  ++num_done_;
  return options_.health == nullptr ? absl::OkStatus() : options_.health();
}

std::optional<ChosenToken> DeviceChooser::Chosen(int64_t index) const {
  const int32_t place = last_done().rows[static_cast<size_t>(index)].place;
  if (place < 0) return std::nullopt;
  const ChosenToken chosen = last_done().results.as<ChosenToken>()[place];
  if (chosen.token == kUndecidedToken) return std::nullopt;
  return chosen;
}

const std::byte* DeviceChooser::RawResult(int64_t index, int rank) const {
  const ChoiceGroups::Row& row = last_done().rows[static_cast<size_t>(index)];
  if (row.raw_offset < 0) return nullptr;
  return last_done().results.as<std::byte>() + chosen_bytes() + row.raw_offset +
         rank * row.raw_stride;
}

}  // namespace lockstep
