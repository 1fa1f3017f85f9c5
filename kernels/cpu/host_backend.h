// What bodies in host memory have in common: the host reads and writes what they compute with, all
// is done when a call returns, and no step is kept.
#pragma once

#include <cstring>

#include "kernels/backend.h"
#include "kernels/base/available_memory.h"
#include "kernels/base/check.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/host_rows.h"

namespace lockstep::cpu {

class HostBackend : public Backend {
 public:
  DType LinearInput() const override { return DType::kF32; }

  void CopyToDevice(void* device, const void* host, int64_t bytes) override {
    if (bytes > 0) std::memmove(device, host, static_cast<size_t>(bytes));
  }
  void CopyToHost(void* host, const void* device, int64_t bytes) override {
    if (bytes > 0) std::memmove(host, device, static_cast<size_t>(bytes));
  }
  void Synchronize() override {}
  int64_t AvailableBytes() const override { return AvailableMemoryBytes(); }
  absl::StatusOr<DeviceBuffer> AllocateOnHost(int64_t bytes) override {
    return AllocateHost(bytes);
  }

  void FillTable(void* table, DType dtype, int64_t width, const HostRows& rows) override {
    for (int64_t row = 0; row < rows.num_rows; ++row) {
      ConvertRow(static_cast<const std::byte*>(rows.data) + row * rows.row_stride_bytes, rows.dtype,
                 width, dtype, static_cast<std::byte*>(table) + row * width * DTypeBytes(dtype));
    }
  }

  void GatherRows(const void* in, const int32_t* rows, int64_t num_rows, int64_t row_bytes,
                  void* out) override {
    for (int64_t i = 0; i < num_rows; ++i) {
      std::memcpy(static_cast<std::byte*>(out) + i * row_bytes,
                  static_cast<const std::byte*>(in) + rows[i] * row_bytes,
                  static_cast<size_t>(row_bytes));
    }
  }

  void WriteBlockTables(const PlacedBlock* blocks, int64_t count, int32_t* block_tables) override {
    for (int64_t i = 0; i < count; ++i) block_tables[blocks[i].place] = blocks[i].block;
  }

  void OffloadKv(const KvBlockCopies& copies) override {
    ForPieces(copies, [](std::byte* device, std::byte* host, size_t bytes) {
      std::memcpy(host, device, bytes);
    });
  }
  void AwaitOffloads() override {}
  void RestoreKv(const KvBlockCopies& copies) override {
    ForPieces(copies, [](std::byte* device, std::byte* host, size_t bytes) {
      std::memcpy(device, host, bytes);
    });
  }
  void PrefetchKv(const KvBlockCopies& copies) override { RestoreKv(copies); }
  void AwaitPrefetches() override {}

  void BeginStep() override {}
  absl::Status Repeat(const StepKey&, const std::function<absl::Status()>& body) override {
    return body();
  }
  absl::Status Keep(const StepKey&, const std::function<absl::Status()>&) override {
    return absl::OkStatus();
  }
  bool KeepsSteps() const override { return false; }
  void ForgetSteps() override {}

  bool SummarizesLogits() const override { return false; }
  void SummarizeLogits(const LogitsSummaryArgs&) override { LogitsAreHere(); }
  void ChooseTokens(const TokenChoiceArgs&) override { LogitsAreHere(); }
  void TakeChosenTokens(const ChosenToken*, const int32_t*, int64_t, int32_t*) override {
    LogitsAreHere();
  }
  void PlaceChosenTokens(const ChosenToken*, const int32_t*, int64_t, ChosenToken*) override {
    LogitsAreHere();
  }
  void StartCopyToHost(void*, const void*, int64_t) override { LogitsAreHere(); }
  absl::StatusOr<std::unique_ptr<WorkMark>> MakeMark() override {
    return absl::UnimplementedError("logits are here");
  }

 private:
  template <typename Copy>
  static void ForPieces(const KvBlockCopies& copies, const Copy& copy) {
    for (const KvBlockCopy& one : copies.copies) {
      for (int64_t piece = 0; piece < copies.num_pieces; ++piece) {
        copy(copies.PieceOf(one.block, piece), one.host + piece * copies.piece_bytes,
             static_cast<size_t>(copies.piece_bytes));
      }
    }
  }
  static void LogitsAreHere() { LS_CHECK(false) << "logits are where the host reads them"; }
};

}  // namespace lockstep::cpu
