// lockstep model: looks at a checkpoint, makes one of any shape with random weights, quantizes one,
// or packs its weights ahead.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/backend.h"
#include "kernels/base/steady_clock.h"
#include "kernels/base/usable_cores.h"
#include "kernels/cpu_backend_options.h"
#include "launcher/base/signals.h"
#include "launcher/cli/add_command.h"
#include "launcher/cli/serving_flags.h"
#include "launcher/cli/values.h"
#include "model/checkpoint/inspect.h"
#include "model/checkpoint/model_quantizer.h"
#include "model/checkpoint/model_shapes.h"
#include "model/checkpoint/model_writer.h"
#include "model/llama/pack_weights.h"

namespace lockstep {
namespace {

struct InspectOptions {
  std::string directory;
  int tp = 1;
  int pp = 1;
  bool tensors = false;
  bool json = false;
};

int RunInspect(const InspectOptions& options) {
  const auto summary = InspectModel(options.directory, options.tp, options.pp);
  if (!summary.ok()) return Fail("model inspect", summary.status());
  std::printf("%s", options.json ? SummaryJson(*summary).c_str()
                                 : SummaryText(*summary, options.tensors).c_str());
  if (options.json) std::printf("\n");
  return summary->tensor_check.ok() ? kExitOk : kExitFailure;  // scripts serve what is good
}

struct SynthOptions {
  std::string shape;
  std::string output;
  std::optional<int64_t> num_layers;
  std::string dtype;
  uint64_t seed = 0;
  bool quiet = false;
};

std::optional<DType> DTypeOf(const std::string& name) {
  if (name == "f32") return DType::kF32;
  if (name == "f16") return DType::kF16;
  if (name == "bf16") return DType::kBF16;
  return std::nullopt;
}

// Redraws one line on a terminal; elsewhere a line at most every two seconds.
class WriteProgress {
 public:
  explicit WriteProgress(bool quiet) : quiet_(quiet) {}
  void Show(int64_t done, int64_t total) {
    const absl::Time now = SteadyNow();
    const bool is_terminal = ::isatty(STDERR_FILENO) == 1;
    if (quiet_ || now < next_) return;
    next_ = now + (is_terminal ? absl::Milliseconds(100) : absl::Seconds(2));
    const double seconds = std::max(1e-3, absl::ToDoubleSeconds(now - started_));
    std::fprintf(
        stderr, "%s%5.1f %% of %s, %s/s%s", is_terminal ? "\r\x1b[K" : "",
        100.0 * static_cast<double>(done) / static_cast<double>(std::max<int64_t>(1, total)),
        FormatBytes(total).c_str(),
        FormatBytes(static_cast<int64_t>(static_cast<double>(done) / seconds)).c_str(),
        is_terminal ? "" : "\n");
    drawn_ = is_terminal;
  }
  void Clear() {
    if (drawn_) std::fprintf(stderr, "\r\x1b[K");
  }
  double Seconds() const { return absl::ToDoubleSeconds(SteadyNow() - started_); }

 private:
  const bool quiet_;
  const absl::Time started_ = SteadyNow();
  absl::Time next_ = started_ + absl::Milliseconds(300);
  bool drawn_ = false;
};

int RunSynth(const SynthOptions& options) {
  InterruptWatcher interrupts;
  WriteProgress progress(options.quiet);
  SynthesizeOptions synthesize;
  synthesize.shape = options.shape;
  synthesize.output = options.output;
  synthesize.num_layers = options.num_layers;
  synthesize.dtype = DTypeOf(options.dtype);
  synthesize.seed = options.seed;
  synthesize.progress = [&](int64_t done, int64_t total) {
    progress.Show(done, total);
    return interrupts.TakeCount() == 0;
  };
  const auto model = SynthesizeModel(synthesize);
  progress.Clear();
  if (!model.ok()) return Fail("model synth", model.status());
  if (!options.quiet) {
    std::printf("Wrote %s: %s parameters, %s, %s in %d file%s, in %s\n", options.output.c_str(),
                FormatCount(model->config.num_parameters()).c_str(),
                std::string(DTypeName(model->config.dtype)).c_str(),
                FormatBytes(model->weight_bytes).c_str(), model->num_files,
                model->num_files == 1 ? "" : "s", FormatSeconds(progress.Seconds()).c_str());
  }
  return kExitOk;
}

struct QuantizeCommandOptions {
  std::string input;
  std::string output;
  std::string format;
  bool quiet = false;
};

int RunQuantize(const QuantizeCommandOptions& options) {
  InterruptWatcher interrupts;
  WriteProgress progress(options.quiet);
  QuantizeOptions quantize;
  quantize.input = options.input;
  quantize.output = options.output;
  quantize.quantization = QuantizationOf(options.format).value_or(Quantization::kInt8);
  quantize.progress = [&](int64_t done, int64_t total) {
    progress.Show(done, total);
    return interrupts.TakeCount() == 0;
  };
  const auto model = QuantizeModel(quantize);
  progress.Clear();
  if (!model.ok()) return Fail("model quantize", model.status());
  if (!options.quiet) {
    std::printf("Wrote %s: %s, %s instead of %s, in %d file%s, in %s\n", options.output.c_str(),
                options.format.c_str(), FormatBytes(model->output_bytes).c_str(),
                FormatBytes(model->input_bytes).c_str(), model->num_files,
                model->num_files == 1 ? "" : "s", FormatSeconds(progress.Seconds()).c_str());
    std::printf("Stored as %s\n", model->loading_text.c_str());
  }
  return kExitOk;
}

struct PackCommandOptions {
  std::string directory;
  int tp = 1;
  int pp = 1;
  std::string dtype = "auto";
  std::string quantize = "none";
  bool quiet = false;
};

int RunPack(const PackCommandOptions& options) {
  const auto checkpoint = Checkpoint::Open(options.directory);
  if (!checkpoint.ok()) return Fail("model pack", checkpoint.status());
  const auto grid = ProcessGrid::Create(options.tp, options.pp);
  if (!grid.ok()) return Fail("model pack", grid.status());
  const auto backend = MakeCpuBackend({});
  if (!backend.ok()) return Fail("model pack", backend.status());
  std::mutex mutex;
  WriteProgress progress(options.quiet);
  PackOptions pack;
  pack.dtype = WeightDTypeOf(options.dtype).value_or(WeightDType::kAuto);
  pack.quantize = QuantizationOf(options.quantize).value_or(Quantization::kNone);
  pack.num_threads = NumUsableCores();
  pack.progress = [&](int64_t done, int64_t total) {
    const std::lock_guard lock(mutex);
    progress.Show(done, total);
  };
  bool is_told = options.quiet;
  pack.on_waiting = [&] {
    if (std::exchange(is_told, true)) return;
    progress.Clear();
    std::fprintf(stderr, "waiting for another process that packs these weights\n");
  };
  const auto packed = PackWeights(**checkpoint, *grid, **backend, pack);
  progress.Clear();
  if (!packed.ok()) return Fail("model pack", packed.status());
  if (!options.quiet) {
    std::printf(
        "%s: %s for tp %d x pp %d, %s; `lockstep serve` maps them on processors like this\n",
        packed->directory.c_str(), FormatBytes(packed->bytes).c_str(), options.tp, options.pp,
        packed->bytes_before == packed->bytes
            ? "there already"
            : ("packed in " + FormatSeconds(progress.Seconds())).c_str());
  }
  return kExitOk;
}

// Options: with directory, tp and pp.
template <class Options>
void AddCheckpointAndLayout(CLI::App& command, const char* tp_help, Options& options) {
  command.add_option("directory", options.directory, "of a Hugging Face checkpoint")
      ->type_name("DIR")
      ->required();
  command.add_option("--tp", options.tp, tp_help)
      ->type_name("N")
      ->check(Between(1, 65536))
      ->capture_default_str();
  command.add_option("--pp", options.pp, "and this many pipeline stages")
      ->type_name("M")
      ->check(Between(1, 65536))
      ->capture_default_str();
}

void AddInspect(CLI::App& model, CommandBody& chosen) {
  InspectOptions* options = nullptr;
  CLI::App* command = AddCommand(
      model, chosen, "inspect", "Show a checkpoint's sizes, tensors and how a layout shares it out",
      &RunInspect, options);
  AddCheckpointAndLayout(*command, "show the shards for this many tensor parallel ranks", *options);
  command->add_flag("--tensors", options->tensors, "list every tensor");
  command->add_flag("--json", options->json, "one JSON object");
}

void AddSynth(CLI::App& model, CommandBody& chosen) {
  SynthOptions* options = nullptr;
  CLI::App* command =
      AddCommand(model, chosen, "synth", "Write a checkpoint of any shape with random weights",
                 &RunSynth, options);
  command
      ->add_option("--shape", options->shape,
                   absl::StrFormat("%s, or the path of a config.json",
                                   absl::StrJoin(BuiltInShapeNames(), ", ")))
      ->type_name("NAME|FILE")
      ->required();
  command->add_option("--layers", options->num_layers, "instead of the shape's number of layers")
      ->type_name("N")
      ->check(Between(1, 65536));
  AddDTypeFlag(*command, {"f32", "f16", "bf16"}, "f32, f16 or bf16 (default: the shape's)",
               options->dtype);
  command->add_option("--seed", options->seed, "equal seeds give equal weights")
      ->type_name("N")
      ->check(Unsigned64())
      ->capture_default_str();
  command->add_flag("--quiet,-q", options->quiet, "print nothing but errors");
  command->add_option("output", options->output, "directory to create")
      ->type_name("OUT")
      ->required();
}

void AddQuantize(CLI::App& model, CommandBody& chosen) {
  QuantizeCommandOptions* options = nullptr;
  CLI::App* command =
      AddCommand(model, chosen, "quantize", "Write a checkpoint's matrices in 8 or 4 bits",
                 &RunQuantize, options);
  command->add_option("input", options->input, "directory of a Hugging Face checkpoint")
      ->type_name("IN")
      ->required();
  command->add_option("output", options->output, "directory to create")
      ->type_name("OUT")
      ->required();
  command->add_option("--to", options->format, "int8 (groups of 64) or int4 (groups of 32)")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"int8", "int4"}).description(""))
      ->required();
  command->add_flag("--quiet,-q", options->quiet, "print nothing but errors");
}

void AddPack(CLI::App& model, CommandBody& chosen) {
  PackCommandOptions* options = nullptr;
  CLI::App* command = AddCommand(
      model, chosen, "pack",
      "Pack a checkpoint's weights ahead, into DIR/packed, for starts that only map them", &RunPack,
      options);
  AddCheckpointAndLayout(*command, "for this many tensor parallel ranks", *options);
  AddDTypeFlag(*command, {"auto", "f32", "bf16"}, "as `serve` will be told: auto, f32 or bf16",
               options->dtype)
      ->capture_default_str();
  command->add_option("--quantize", options->quantize, "likewise: none, int8 or int4")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"none", "int8", "int4"}).description(""))
      ->capture_default_str();
  command->add_flag("--quiet,-q", options->quiet, "print nothing but errors");
}

}  // namespace

void AddModelCommand(CLI::App& program, CommandBody& chosen) {
  CLI::App* command =
      program.add_subcommand("model", "Look at a checkpoint, make one, quantize or pack it");
  command->require_subcommand(1);
  AddInspect(*command, chosen);
  AddSynth(*command, chosen);
  AddQuantize(*command, chosen);
  AddPack(*command, chosen);
}

}  // namespace lockstep
