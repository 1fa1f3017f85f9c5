#include "model/llama/shard_reader.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/status/statusor.h"
#include "kernels/base/status_macros.h"
#include "model/llama/pinned_slots.h"

namespace lockstep {
namespace {

// Of a thread; should stay in its second-level cache between being read and being packed. A slot of
// pinned memory, too, which takes a bus of 55 GB/s 20 us.
constexpr int64_t kStagingBytes = 1 << 20;
// Packed layouts interleave so many: threads stay out of each other's lines.
constexpr int64_t kRowsTogether = 32;

struct Piece {
  const TensorPart* part;
  Range rows;  // of the part
};

std::vector<Piece> CutIntoPieces(const std::vector<TensorPart>& parts, int64_t rows_together) {
  std::vector<Piece> pieces;
  for (const TensorPart& part : parts) {
    if (part.bytes() == 0) continue;
    const int64_t row_bytes = std::max<int64_t>(1, part.source->StagingRowBytes(part.columns));
    const int64_t fitting = kStagingBytes / row_bytes / rows_together * rows_together;
    const int64_t step = std::max(fitting, rows_together);
    for (int64_t row = 0; row < part.rows.size(); row += step) {
      pieces.push_back({&part, {row, std::min(row + step, part.rows.size())}});
    }
  }
  return pieces;
}

// What the loader threads share.
class PartsReader {
 public:
  PartsReader(const std::vector<TensorPart>& parts, Backend& backend, const LoadProgress& progress)
      : backend_(backend),
        pieces_(CutIntoPieces(parts, backend.TakesPinnedRows() ? 1 : kRowsTogether)),
        progress_(progress) {
    for (const TensorPart& part : parts) total_bytes_ += part.bytes();
  }

  absl::StatusOr<ReadStats> Read(int num_threads);

 private:
  // One thread's work: takes pieces until none is left or a read failed anywhere.
  void Run() {
    Staging staging;
    for (size_t next = next_piece_++; next < pieces_.size(); next = next_piece_++) {
      const absl::Status status = ReadPinned(pieces_[next], staging);
      if (!status.ok()) return Fail(status);
    }
  }

  absl::Status ReadPinned(const Piece& piece, Staging& staging);
  absl::Status ReadPiece(const Piece& piece, Staging& staging);
  void Fail(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    status_.Update(status);
    next_piece_ = pieces_.size();
  }

  Backend& backend_;
  const std::vector<Piece> pieces_;
  const LoadProgress& progress_;
  std::unique_ptr<PinnedSlots> slots_;  // null where rows need not be pinned
  int64_t total_bytes_ = 0;
  std::atomic<size_t> next_piece_{0};
  std::atomic<int64_t> bytes_done_{0};
  std::atomic<int64_t> pinned_bytes_{0};
  std::mutex mutex_;
  absl::Status status_;  // guarded by mutex_: the first error
};

absl::Status PartsReader::ReadPiece(const Piece& piece, Staging& staging) {
  const TensorPart& part = *piece.part;
  const Range rows = {part.rows.begin + piece.rows.begin, part.rows.begin + piece.rows.end};
  ASSIGN_OR_RETURN(const HostRows read, part.source->Read(rows, part.columns, staging));
  part.fill(piece.rows.begin, read);
  const int64_t bytes = part.source->StoredBytes(rows, part.columns);
  if (read.is_pinned) pinned_bytes_ += bytes;
  const int64_t done = bytes_done_.fetch_add(bytes) + bytes;
  if (progress_ != nullptr) progress_(done, total_bytes_);
  return absl::OkStatus();
}

absl::Status PartsReader::ReadPinned(const Piece& piece, Staging& staging) {
  if (slots_ == nullptr) return ReadPiece(piece, staging);
  const PinnedSlots::Slot slot = slots_->Take();  // goes back whatever comes of it
  staging.pinned = slot.memory();
  return ReadPiece(piece, staging);
}

absl::StatusOr<ReadStats> PartsReader::Read(int num_threads) {
  const auto useful = std::min<int64_t>(num_threads, std::ssize(pieces_));
  if (backend_.TakesPinnedRows() && useful > 0) {
    const auto num_slots = static_cast<int>(std::min<int64_t>(2 * useful, kMostPinnedSlots));
    ASSIGN_OR_RETURN(slots_, PinnedSlots::Create(backend_, num_slots, kStagingBytes));
  }
  std::vector<std::thread> helpers;
  for (int64_t i = 1; i < useful; ++i) helpers.emplace_back([this] { Run(); });
  Run();
  for (std::thread& helper : helpers) helper.join();
  slots_.reset();
  RETURN_IF_ERROR(status_);
  return ReadStats{.bytes = bytes_done_, .pinned_bytes = pinned_bytes_};
}

}  // namespace

absl::StatusOr<ReadStats> ReadParts(const std::vector<TensorPart>& parts, Backend& backend,
                                    int num_threads, const LoadProgress& progress) {
  return PartsReader(parts, backend, progress).Read(num_threads);
}

}  // namespace lockstep
