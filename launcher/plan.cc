// lockstep plan: how many GPUs, in which layout, at what speed and price. Offline arithmetic; all
// of it is in deploy/plan.
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "deploy/plan/gpu_calibration.h"
#include "deploy/plan/pareto.h"
#include "deploy/plan/report.h"
#include "deploy/plan/worked_examples.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "launcher/cli/add_command.h"
#include "launcher/plan_options.h"

namespace lockstep {
namespace {

constexpr char kUsualEngine[] = "vllm";

// What was measured on such GPUs, in the file that was named or on this host.
absl::StatusOr<std::optional<plan::HostProfile>> CalibrationOf(const PlanOptions& options,
                                                               const plan::Gpu& gpu) {
  ASSIGN_OR_RETURN(std::optional<plan::HostProfile> profile, FindPlanProfile(options, "cuda"));
  if (!profile || IsProfileOf(*profile, gpu)) return profile;
  if (options.profile.empty()) return std::nullopt;
  return InFile(options.profile, CheckProfileOf(*profile, gpu));
}

// Lockstep's own speed and memory where it was calibrated, unless another engine is named.
absl::Status FillEngine(const PlanOptions& options, plan::PlanRequest& request) {
  const bool wants_own = absl::AsciiStrToLower(options.engine) == plan::kOwnEngine;
  const bool may_be_own = wants_own || options.engine.empty();
  ASSIGN_OR_RETURN(request.engine, plan::FindEngine(may_be_own ? kUsualEngine : options.engine));
  if (!may_be_own && !options.profile.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--profile says how fast Lockstep is, --engine ",
                                                   options.engine,
                                                   " another engine: leave out one of them"));
  }
  if (!may_be_own) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto profile, CalibrationOf(options, request.gpu));
  if (profile) {
    const plan::CalibratedGpu calibrated = Calibrated(*profile, request.gpu, request.engine);
    request.gpu = calibrated.gpu;
    request.engine = calibrated.engine;
  } else if (wants_own) {
    return absl::NotFoundError(absl::StrCat(
        "--engine lockstep: no ", request.gpu.name,
        " was calibrated on this host; name a profile of one by --profile, or another engine"));
  }
  return absl::OkStatus();
}

absl::Status FillHardware(const PlanOptions& options, plan::PlanRequest& request) {
  ASSIGN_OR_RETURN(request.gpu, plan::FindGpu(options.gpu));
  RETURN_IF_ERROR(FillEngine(options, request));
  request.gpus_per_node = options.gpus_per_node.value_or(request.gpu.gpus_per_node);
  if (options.nodes) request.max_nodes = *options.nodes;
  request.tp = options.tp.value_or(0);
  request.pp = options.pp.value_or(0);
  request.expert_parallel = options.expert_parallel;
  request.memory.utilization = options.utilization;
  request.memory.block_size = options.block_size;
  plan::Prices prices = plan::BuiltInPrices();
  if (!options.price.empty()) {
    ASSIGN_OR_RETURN(prices, plan::LoadPrices(options.price));
  }
  if (const auto price = prices.find(request.gpu.name); price != prices.end()) {
    request.usd_per_gpu_hour = price->second.usd_per_gpu_hour;
    request.price_source = price->second.source;
  }
  return absl::OkStatus();
}

// Queues may take some seconds.
void ShowSimulation(const plan::Layout& layout) {
  std::fprintf(stderr, "\r\x1b[KSimulating a queue: tp %d x pp %d, %d replica%s", layout.tp,
               layout.pp, layout.replicas, layout.replicas == 1 ? "" : "s");
}

absl::StatusOr<plan::Plan> Compute(const PlanOptions& options) {
  plan::PlanRequest request;
  RETURN_IF_ERROR(FillPlannedModel(options, request));
  RETURN_IF_ERROR(FillHardware(options, request));
  RETURN_IF_ERROR(FillPlannedLoad(options, request));
  const bool is_terminal = ::isatty(STDERR_FILENO) == 1;
  plan::SimulationBudget budget;
  if (is_terminal) budget.on_begin = ShowSimulation;
  auto made = plan::MakePlan(request, std::move(budget));
  if (is_terminal) std::fprintf(stderr, "\r\x1b[K");
  return made;
}

int Explain(const std::string& name) {
  const auto text = plan::ExplainText(name);
  if (!text.ok()) return FailUsage("plan", std::string(text.status().message()));
  std::printf("%s", text->c_str());
  return kExitOk;
}

absl::Status Show(const PlanOptions& options, const plan::Plan& plan) {
  const std::vector<plan::ParetoPoint> points = plan::ParetoPoints(plan);
  if (options.json) {
    std::printf("%s", PlanJson(plan, points).c_str());
  } else {
    std::printf("%s%s", PlanText(plan).c_str(), plan::ParetoText(points).c_str());
  }
  RETURN_IF_ERROR(WritePlanFile(options.svg, plan::ParetoSvg(plan, points)));
  return WritePlanFile(options.html, plan::ParetoHtml(plan, points));
}

int RunPlan(const PlanOptions& options) {
  if (options.calibrate_flag->count() > 0) return RunCalibration(options);
  if (options.list) {
    std::printf("%s", plan::CatalogText().c_str());
    return kExitOk;
  }
  if (!options.explain.empty()) return Explain(options.explain);
  if (options.model.empty()) {
    return FailUsage(
        "plan",
        "--model is missing: a name like llama-3.1-8b (--list has all), a config.json or its "
        "directory");
  }
  if (options.gpu == "cpu") return RunHostPlan(options);
  const auto plan = Compute(options);
  if (!plan.ok()) return FailUsage("plan", std::string(plan.status().message()));
  if (const absl::Status shown = Show(options, *plan); !shown.ok()) return Fail("plan", shown);
  return plan->answer() == nullptr ? kExitFailure : kExitOk;
}

void AddWhat(CLI::App& command, PlanOptions& options) {
  command
      .add_option("--model", options.model,
                  "built-in name (see --list), config.json or its directory")
      ->type_name("NAME|PATH");
  command
      .add_option("--weights", options.weights,
                  "bf16, fp8, fp8-mlp, int8, int4, nvfp4 or f32 (default: the checkpoint's)")
      ->type_name("FORMAT");
  command.add_option("--kv", options.kv, "bf16, fp8, int8, int4, int2 or f32")->type_name("FORMAT");
  command
      .add_option("--kv-budget", options.kv_budget,
                  "tokens kept per request (StreamingLLM, H2O; default: all)")
      ->type_name("N")
      ->check(Between(1, 1 << 27));
  command
      .add_option("--kv-read", options.kv_read,
                  "tokens read per step and layer (Quest; default: all)")
      ->type_name("N")
      ->check(Between(1, 1 << 27));
  command
      .add_option("--layers-per-kv", options.layers_per_kv,
                  "consecutive layers that share one KV cache")
      ->type_name("N")
      ->check(Between(1, 4096))
      ->capture_default_str();
}

void AddWhere(CLI::App& command, PlanOptions& options) {
  command
      .add_option("--gpu", options.gpu,
                  "built-in name (see --list); cpu: what `serve` takes and reaches on this host")
      ->type_name("NAME")
      ->capture_default_str();
  command.add_option("--nodes", options.nodes, "at most (default: 16)")
      ->type_name("N")
      ->check(Between(1, 4096));
  command.add_option("--gpus-per-node", options.gpus_per_node, "(default: the GPU's usual node)")
      ->type_name("N")
      ->check(Between(1, 1024));
  command.add_option("--tp", options.tp, "only this many tensor parallel ranks")
      ->type_name("N")
      ->check(Between(1, 65536));
  command.add_option("--pp", options.pp, "only this many pipeline stages")
      ->type_name("N")
      ->check(Between(1, 65536));
  command.add_flag("--expert-parallel", options.expert_parallel,
                   "experts whole on one rank instead of sliced over all");
  command
      .add_option("--utilization", options.utilization,
                  "share of GPU memory to use: what `serve` calls --gpu-memory-utilization")
      ->type_name("SHARE")
      ->check(Between(0.05, 0.99))
      ->capture_default_str();
  command.add_option("--block-size", options.block_size, "tokens of a KV cache block")
      ->type_name("N")
      ->check(Between(1, 1024))
      ->capture_default_str();
  command
      .add_option(
          "--engine", options.engine,
          absl::StrCat("whose efficiency speeds are predicted with: ",
                       absl::StrJoin(plan::EngineNames(), ", "),
                       "; lockstep, and its memory, where it was calibrated (default: lockstep "
                       "there, else ",
                       kUsualEngine, ")"))
      ->type_name("NAME");
  command.add_option("--price", options.price, "file like deploy/plan/data/prices.json")
      ->type_name("FILE");
}

void AddLoadFlags(CLI::App& command, PlanOptions& options) {
  command
      .add_option("--context", options.context,
                  "the longest request, tokens (default: input and output)")
      ->type_name("N")
      ->check(Between(1, 1 << 27));
  command
      .add_option("--concurrency", options.concurrency,
                  "requests at the same time (default: 64; --gpu cpu: 1)")
      ->type_name("N")
      ->check(Between(1, 1e7));
  command
      .add_option("--rate", options.rate,
                  "or: requests that arrive, like 2/s or 120/min; 2 alone is per second")
      ->type_name("RATE");
  command
      .add_option("--trace", options.trace,
                  "or: a file of requests, lines of seconds,input,output (tokens)")
      ->type_name("FILE");
  command
      .add_option(
          "--input", options.input,
          "tokens of a usual prompt (default: 2000; --gpu cpu: 512; less in a short context)")
      ->type_name("N")
      ->check(Between(1, 1e8));
  command
      .add_option(
          "--output", options.output,
          "tokens of a usual answer (default: 500; --gpu cpu: 128; less in a short context)")
      ->type_name("N")
      ->check(Between(1, 1e8));
  command
      .add_option("--ttft-p95", options.ttft_p95,
                  "limit of the time to first token, like 2s or 500ms")
      ->type_name("TIME");
  command
      .add_option("--tpot-p95", options.tpot_p95, "limit of the time per output token, like 50ms")
      ->type_name("TIME");
}

void AddCalibrationFlags(CLI::App& command, PlanOptions& options) {
  const char* group = "This host";
  CLI::Option* calibrate =
      command
          .add_option("--calibrate", options.calibrate,
                      "measure what ranks reach on this host, a few minutes (less with --tp, "
                      "--pp or --weights: only those), and keep it in FILE (default: "
                      "~/.config/lockstep/HOST.json, of GPUs HOST.cuda.json)")
          ->type_name("[FILE]")
          ->expected(0, 1)
          ->group(group);
  options.calibrate_flag = calibrate;
  command
      .add_option("--device", options.device,
                  "what is measured: cpu, cuda, or auto (GPUs where there are some)")
      ->type_name("NAME")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}).description(""))
      ->capture_default_str()
      ->needs(calibrate)
      ->group(group);
  command.add_flag("--quick", options.quick, "rougher, in a fraction of the time")
      ->needs(calibrate)
      ->group(group);
  command.add_option("--probe-sizes", options.probe_sizes, "of what is measured")
      ->needs(calibrate)
      ->group("");  // for those who try the measurement itself
  command.add_option("--probe-seconds", options.probe_seconds, "the longest a job may take")
      ->check(Between(0.001, 86400))
      ->needs(calibrate)
      ->group("");
  command
      .add_option("--profile", options.profile,
                  "what --gpu predicts with, if it was measured on that: such a FILE")
      ->type_name("FILE")
      ->group(group);
}

}  // namespace

void AddPlanCommand(CLI::App& program, CommandBody& chosen) {
  PlanOptions* options = nullptr;
  CLI::App* command = AddCommand(program, chosen, "plan",
                                 "How many GPUs a model and a load need (the fewest that hold it, "
                                 "not the least per token), in which layout, at what speed and "
                                 "price",
                                 &RunPlan, options);
  AddWhat(*command, *options);
  AddWhere(*command, *options);
  AddLoadFlags(*command, *options);
  AddCalibrationFlags(*command, *options);
  auto* json = command->add_flag("--json", options->json, "one JSON object");
  command->add_option("--svg", options->svg, "write the chart of throughput over TPOT")
      ->type_name("FILE");
  command->add_option("--html", options->html, "the same with the plan as a page")
      ->type_name("FILE");
  command->add_flag("--list", options->list,
                    "the built-in models and GPUs with their other names, instead of a plan");
  command
      ->add_option("--explain", options->explain, "worked examples instead of a plan: 405b-slides")
      ->type_name("NAME")
      ->excludes(json);
}

}  // namespace lockstep
