// How fast weights come from the page cache into a stage, beside what reading alone takes.
//
//   load_bench --model DIR [--tp N --pp M --threads K] [--weight-cache DIR] [--device cuda]
//
// All ranks of the layout load at the same time, as threads of this process with K loader threads
// each. The limits, of the same files in the same run: what dd does (one thread reads everything
// through a buffer of 8 MiB), the same by as many threads as load, and the same into fresh memory,
// which is what a loader would take that needs no other layout. With --weight-cache also what a
// start takes that maps the weights packed by an earlier one. With --device cuda weights go to
// GPUs, rank after rank to the next (all to one where there is only one); what of their bytes the
// host writes more than once, beyond reading them to where a GPU copies from, is told. The best of
// several passes; the first, which fills the page cache, is not counted. Memory is touched and
// freed again before each pass, because a virtual machine whose host must find it first measures
// that (0.4 GB/s instead of 20).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "fmt/format.h"
#include "kernels/accelerator.h"
#include "kernels/backend.h"
#include "kernels/base/check.h"
#include "kernels/cpu_backend_options.h"
#include "model/llama/llama_stage.h"

namespace lockstep {
namespace {

constexpr int64_t kBufferBytes = 8 << 20;

struct LoadBenchOptions {
  std::string model;
  int tp = 1;
  int pp = 1;
  int threads = 1;
  int repeats = 5;
  std::string dtype = "auto";
  std::string weight_cache;
  std::string device = "cpu";
};

template <typename T>
T Value(absl::StatusOr<T> value) {
  LS_CHECK(value.ok()) << value.status();
  return *std::move(value);
}

double SecondsOf(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void TouchMemory(int64_t bytes) {
  auto backend = Value(MakeCpuBackend({}));
  const DeviceBuffer memory = Value(backend->Allocate(bytes));
  for (int64_t at = 0; at < bytes; at += 4096) memory.as<char>()[at] = 1;
}

double BestSeconds(int repeats, int64_t memory_bytes, const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    TouchMemory(memory_bytes);
    seconds.push_back(SecondsOf(work));
  }
  return *std::min_element(seconds.begin(), seconds.end());
}

void OnThreads(int count, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 1; i < count; ++i) threads.emplace_back(work, i);
  work(0);
  for (std::thread& thread : threads) thread.join();
}

class LoadBench {
 public:
  explicit LoadBench(const LoadBenchOptions& options)
      : options_(options),
        grid_(Value(ProcessGrid::Create(options.tp, options.pp))),
        checkpoint_(Value(Checkpoint::Open(options.model))),
        bytes_(checkpoint_->total_bytes()) {
    if (options.device == "cuda") accelerator_ = Value(OpenAccelerator());
    for (const auto& file : checkpoint_->files()) {
      const TensorInfo& last = *std::max_element(
          file->tensors().begin(), file->tensors().end(),
          [](const TensorInfo& a, const TensorInfo& b) { return a.file_offset < b.file_offset; });
      for (int64_t at = 0; at < last.file_offset + last.num_bytes; at += kBufferBytes) {
        pieces_.push_back(
            {file.get(), at, std::min(kBufferBytes, last.file_offset + last.num_bytes - at)});
      }
    }
  }

  void Run() {
    const int threads = grid_.world_size() * options_.threads;
    fmt::print("{}: {:.2f} GB, tp {} x pp {}, {} loader threads in all\n", options_.model,
               static_cast<double>(bytes_) * 1e-9, options_.tp, options_.pp, threads);
    for (int rank = 0; rank < grid_.world_size(); ++rank) backends_.push_back(BackendOf(rank));
    if (accelerator_ != nullptr) fmt::print("{}\n", backends_.front()->Description());
    Read(1);
    const auto measure = [&](const std::function<void()>& work) {
      return BestSeconds(options_.repeats, 2 * bytes_, work);
    };
    const double dd = measure([&] { Read(1); });
    const auto print = [&](const char* what, double seconds) {
      fmt::print("  {:34} {:6.3f} s  {:5.1f} GB/s  {:5.1f} % of dd\n", what, seconds,
                 static_cast<double>(bytes_) / seconds * 1e-9, 100 * dd / seconds);
    };
    print("read, 1 thread (dd bs=8M)", dd);
    print("read, all threads", measure([&] { Read(threads); }));
    print("read into fresh memory", measure([&] { ReadKeeping(threads); }));
    print("load", measure([&] { Load(""); }));
    if (accelerator_ != nullptr) {
      fmt::print("  of {:.2f} GB for all ranks {:.1f} % are copied by the host once more\n",
                 static_cast<double>(loaded_bytes_) * 1e-9,
                 100.0 - 100.0 * static_cast<double>(pinned_bytes_) /
                             static_cast<double>(std::max<int64_t>(loaded_bytes_, 1)));
    }
    if (options_.weight_cache.empty()) return;
    print("first load with the weight cache",
          BestSeconds(1, 2 * bytes_, [&] { Load(options_.weight_cache); }));
    print("load from the weight cache", measure([&] { Load(options_.weight_cache); }));
  }

 private:
  struct Piece {
    const SafetensorsFile* file;
    int64_t offset;
    int64_t bytes;
  };

  void ForPieces(int num_threads, const std::function<void(size_t, std::vector<char>&)>& work) {
    std::atomic<size_t> next{0};
    OnThreads(num_threads, [&](int) {
      std::vector<char> buffer(kBufferBytes);
      for (size_t i = next++; i < pieces_.size(); i = next++) work(i, buffer);
    });
  }
  void Read(int num_threads) {
    ForPieces(num_threads, [&](size_t i, std::vector<char>& buffer) {
      LS_CHECK(pieces_[i].file->ReadAt(pieces_[i].offset, pieces_[i].bytes, buffer.data()).ok());
    });
  }
  void ReadKeeping(int num_threads) {
    auto backend = Value(MakeCpuBackend({}));
    const DeviceBuffer kept =
        Value(backend->Allocate(static_cast<int64_t>(pieces_.size()) * kBufferBytes));
    ForPieces(num_threads, [&](size_t i, std::vector<char>&) {
      char* place = kept.as<char>() + static_cast<int64_t>(i) * kBufferBytes;
      LS_CHECK(pieces_[i].file->ReadAt(pieces_[i].offset, pieces_[i].bytes, place).ok());
    });
  }
  void Load(const std::string& weight_cache) {
    std::vector<RankGroups> groups = MakeInProcessGroups(grid_);
    StageOptions stage_options;
    stage_options.weight_cache = weight_cache;
    stage_options.on_notice = [](const std::string& text) { fmt::print(stderr, "{}\n", text); };
    stage_options.weights = *WeightDTypeOf(options_.dtype);
    stage_options.num_load_threads = options_.threads;
    stage_options.limits = {
        .max_batched_tokens = 16, .max_num_seqs = 1, .max_model_len = 16, .block_size = 16};
    loaded_bytes_ = pinned_bytes_ = 0;
    OnThreads(grid_.world_size(), [&](int rank) {
      Backend& backend = *backends_[static_cast<size_t>(rank)];
      const auto stage =
          Value(LlamaStage::Load(*checkpoint_, grid_, rank, backend,
                                 groups[static_cast<size_t>(rank)], stage_options, nullptr));
      loaded_bytes_ += stage->load_stats().loaded_bytes;
      pinned_bytes_ += stage->load_stats().pinned_bytes;
    });
  }
  std::unique_ptr<Backend> BackendOf(int rank) const {
    if (accelerator_ == nullptr) return Value(MakeCpuBackend({.num_threads = 1}));
    const auto num_devices = static_cast<int>(Value(accelerator_->Devices()).size());
    const DType compute = Value(AttentionDType(*checkpoint_, *WeightDTypeOf(options_.dtype), true));
    return Value(accelerator_->MakeBackend({.device = rank % num_devices, .compute = compute}));
  }

  const LoadBenchOptions options_;
  const ProcessGrid grid_;
  const std::unique_ptr<Checkpoint> checkpoint_;
  const int64_t bytes_;
  Accelerator* accelerator_ = nullptr;              // null: weights go to the CPU
  std::vector<std::unique_ptr<Backend>> backends_;  // of each rank
  std::vector<Piece> pieces_;
  std::atomic<int64_t> loaded_bytes_{0};  // of the last load, by all ranks
  std::atomic<int64_t> pinned_bytes_{0};
};

int Main(int argc, char** argv) {
  LoadBenchOptions options;
  CLI::App app{"Loading from the page cache, beside reading alone."};
  app.add_option("--model", options.model, "Checkpoint directory")->required();
  app.add_option("--tp", options.tp, "Tensor parallel ranks")->check(CLI::Range(1, 64));
  app.add_option("--pp", options.pp, "Pipeline stages")->check(CLI::Range(1, 64));
  app.add_option("--threads", options.threads, "Loader threads per rank")
      ->check(CLI::Range(1, 256));
  app.add_option("--repeats", options.repeats, "Best of so many")->check(CLI::Range(1, 1000));
  app.add_option("--dtype", options.dtype, "Weights: auto, f32, bf16 or f16")
      ->check(CLI::IsMember({"auto", "f32", "bf16", "f16"}));
  app.add_option("--device", options.device, "Where to: cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--weight-cache", options.weight_cache, "Keep packed weights there and map them");
  CLI11_PARSE(app, argc, argv);
  LoadBench(options).Run();
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::Main(argc, argv); }
