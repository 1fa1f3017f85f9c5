#include "model/llama/shard_reader.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "absl/status/statusor.h"
#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

// Of a thread; should stay in its second-level cache between being read and being packed.
constexpr int64_t kStagingBytes = 1 << 20;

struct Piece {
  const TensorPart* part;
  Range rows;  // of the part
};

std::vector<Piece> CutIntoPieces(const std::vector<TensorPart>& parts) {
  constexpr int64_t kRowsTogether =
      32;  // packed layouts interleave so many: threads stay out of each other's lines
  std::vector<Piece> pieces;
  for (const TensorPart& part : parts) {
    if (part.bytes() == 0) continue;
    const int64_t row_bytes = std::max<int64_t>(1, part.source->StagingRowBytes(part.columns));
    const int64_t fitting = kStagingBytes / row_bytes / kRowsTogether * kRowsTogether;
    const int64_t step = std::max(fitting, kRowsTogether);
    for (int64_t row = 0; row < part.rows.size(); row += step) {
      pieces.push_back({&part, {row, std::min(row + step, part.rows.size())}});
    }
  }
  return pieces;
}

// What the loader threads share.
class PartsReader {
 public:
  PartsReader(const std::vector<TensorPart>& parts, const LoadProgress& progress)
      : pieces_(CutIntoPieces(parts)), progress_(progress) {
    for (const TensorPart& part : parts) total_bytes_ += part.bytes();
  }

  size_t num_pieces() const { return pieces_.size(); }
  int64_t bytes_done() const { return bytes_done_; }

  // One thread's work: takes pieces until none is left or a read failed anywhere.
  void Run() {
    Staging staging;
    for (size_t next = next_piece_++; next < pieces_.size(); next = next_piece_++) {
      const absl::Status status = ReadPiece(pieces_[next], staging);
      if (!status.ok()) return Fail(status);
    }
  }

  absl::Status TakeStatus() { return std::move(status_); }

 private:
  absl::Status ReadPiece(const Piece& piece, Staging& staging);
  void Fail(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    status_.Update(status);
    next_piece_ = pieces_.size();
  }

  const std::vector<Piece> pieces_;
  const LoadProgress& progress_;
  int64_t total_bytes_ = 0;
  std::atomic<size_t> next_piece_{0};
  std::atomic<int64_t> bytes_done_{0};
  std::mutex mutex_;
  absl::Status status_;  // guarded by mutex_: the first error
};

absl::Status PartsReader::ReadPiece(const Piece& piece, Staging& staging) {
  const TensorPart& part = *piece.part;
  const Range rows = {part.rows.begin + piece.rows.begin, part.rows.begin + piece.rows.end};
  ASSIGN_OR_RETURN(const HostRows read, part.source->Read(rows, part.columns, staging));
  part.fill(piece.rows.begin, read);
  const int64_t bytes = part.source->StoredBytes(rows, part.columns);
  const int64_t done = bytes_done_.fetch_add(bytes) + bytes;
  if (progress_ != nullptr) progress_(done, total_bytes_);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> ReadParts(const std::vector<TensorPart>& parts, int num_threads,
                                  const LoadProgress& progress) {
  PartsReader reader(parts, progress);
  const int64_t useful = std::min<int64_t>(num_threads, static_cast<int64_t>(reader.num_pieces()));
  std::vector<std::thread> helpers;
  for (int64_t i = 1; i < useful; ++i) helpers.emplace_back([&reader] { reader.Run(); });
  reader.Run();
  for (std::thread& helper : helpers) helper.join();
  if (absl::Status status = reader.TakeStatus(); !status.ok()) return status;
  return reader.bytes_done();
}

}  // namespace lockstep
