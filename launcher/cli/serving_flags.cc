#include "launcher/cli/serving_flags.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/usable_cores.h"
#include "launcher/cli/add_command.h"
#include "model/tokenizer/utf8.h"

namespace lockstep {
namespace {

constexpr double kLeastGib = 1e-6;

// Of what config.json and other servers call them.
std::string ShortDTypeName(const std::string& name) {
  if (name == "float32") return "f32";
  if (name == "bfloat16") return "bf16";
  return name == "float16" ? "f16" : name;
}

std::string CheckModelName(const std::string& name) {
  constexpr size_t kMaxBytes = 256;
  if (name.size() > kMaxBytes) {
    return absl::StrCat("has ", name.size(), " bytes, at most ", kMaxBytes);
  }
  const bool is_printable =
      std::all_of(name.begin(), name.end(), [](unsigned char c) { return c >= 0x20 && c != 0x7f; });
  const bool is_utf8 = FindInvalidUtf8(name) == std::string_view::npos;
  return is_printable && is_utf8 ? "" : "must be printable UTF-8";
}

}  // namespace

void AddModelFlags(CLI::App& command, ModelFlags& flags) {
  command
      .add_option("model", flags.model,
                  "directory of a Hugging Face checkpoint (Llama, Mistral, Qwen2, Qwen3)")
      ->type_name("MODEL")
      ->required();
  command
      .add_option(
          "--quantize", flags.quantize,
          "keep matrices in 8 or 4 bits: none, int8, int4 (on CPUs), fp8 (on GPUs); ranks and "
          "controller must agree")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"none", "int8", "int4", "fp8"}).description(""))
      ->capture_default_str()
      ->group("Computation");
  const char* layout = "Layout";
  command.add_option("--tp", flags.tp, "tensor parallel ranks: every layer is split over them")
      ->type_name("N")
      ->check(Between(1, 65536))
      ->capture_default_str()
      ->group(layout);
  command.add_option("--pp", flags.pp, "pipeline stages: the layers are dealt out to them")
      ->type_name("M")
      ->check(Between(1, 65536))
      ->capture_default_str()
      ->group(layout);
  const char* limits = "Limits";
  command.add_option("--block-size", flags.block_size, "tokens of a KV cache block")
      ->type_name("TOKENS")
      ->check(Between(1, 1024))
      ->capture_default_str()
      ->group(limits);
  command.add_option("--max-num-seqs", flags.max_num_seqs, "sequences that run at the same time")
      ->type_name("N")
      ->check(Between(1, 65536))
      ->capture_default_str()
      ->group(limits);
  command.add_option("--max-batched-tokens", flags.max_batched_tokens, "tokens of one step")
      ->type_name("TOKENS")
      ->check(Between(1, 1 << 20))
      ->capture_default_str()
      ->group(limits);
  command
      .add_option("--max-model-len", flags.max_model_len,
                  "prompt and output tokens of one sequence (default: the model's)")
      ->type_name("TOKENS")
      ->check(Between(2, 1 << 30))
      ->group(limits);
}

void AddRankFlags(CLI::App& command, RankFlags& flags) {
  const char* group = "Computation";
  command
      .add_option("--device", flags.device,
                  "what ranks compute on: cpu, cuda, or auto (GPUs where there are some)")
      ->type_name("NAME")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}).description(""))
      ->capture_default_str()
      ->group(group);
  command
      .add_flag("--share-gpus", flags.shares_gpus,
                "let ranks of one host share GPUs, each a part of the memory: for tests; without "
                "it more ranks than GPUs are refused")
      ->group(group);
  command
      .add_option("--gpu-memory-utilization", flags.gpu_memory_utilization,
                  "the part of a GPU's memory for weights, activations and KV cache")
      ->type_name("PART")
      ->check(Between(0.05, 0.99))
      ->capture_default_str()
      ->group(group);
  command
      .add_flag("--deterministic", flags.deterministic,
                "on GPUs: the same numbers whatever else is in a batch, at some cost; CPUs always "
                "do so")
      ->group(group);
  command
      .add_option(
          "--threads-per-rank", flags.threads,
          "(default: cores / ranks on this host, of all replicas; under Slurm its --cpus-per-task)")
      ->type_name("K")
      ->check(Between(1, kMaxThreadsPerRank))
      ->group(group);
  command
      .add_flag("--share-cores", flags.shares_cores,
                "let the system move threads over all cores: by default ranks of a host with "
                "several last-level caches keep to neighbouring cores of their own, of their "
                "GPU's NUMA node")
      ->group(group);
  command
      .add_option(
          "--isa", flags.isa,
          "highest instruction set: auto, scalar, avx2, avxvnni, avx512, avx512vnni, avx512bf16, "
          "amx")
      ->type_name("NAME")
      ->check(CLI::IsMember({"auto", "scalar", "avx2", "avxvnni", "avx512", "avx512vnni",
                             "avx512bf16", "amx"})
                  .description(""))
      ->capture_default_str()
      ->group(group);
  AddDTypeFlag(command, {"auto", "f32", "bf16", "f16"},
               "how weights are kept and, on GPUs, multiplied: auto (as stored; CPUs widen f16), "
               "f32, bf16, f16 (on GPUs); float32, bfloat16 and float16 are the same",
               flags.dtype)
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--kv-cache-dtype", flags.kv_cache_dtype,
                  "how keys and values are kept: auto (as attention's weights are), fp8 (e4m3, by "
                  "the checkpoint's scales, if any: half of bf16's memory, other answers)")
      ->type_name("NAME")
      ->check(CLI::IsMember({"auto", "fp8", "fp8_e4m3"}).description(""))
      ->capture_default_str()
      ->group(group);
}

CLI::Option* AddDTypeFlag(CLI::App& command, const std::vector<std::string>& names,
                          const char* help, std::string& dtype) {
  return command.add_option("--dtype", dtype, help)
      ->type_name("NAME")
      ->check(CLI::IsMember(names).description(""))
      ->transform(&ShortDTypeName, "");  // before the check
}

void AddWeightCacheFlag(CLI::App& command, const char* help, RankFlags& flags) {
  const auto check = [](const std::string& value) -> std::string {
    std::error_code error;
    if (value.empty()) return "must not be empty";
    return std::filesystem::exists(value, error) && !std::filesystem::is_directory(value, error)
               ? value + " is not a directory"
               : "";
  };
  command.add_option("--weight-cache", flags.weight_cache, help)
      ->type_name("WHERE")
      ->check(check, "")
      ->capture_default_str()
      ->group("Loading");
}

void AddKvCacheFlags(CLI::App& command, const char* help, const char* whose, KvCacheFlags& flags) {
  const char* group = "Limits";
  auto* gib = command.add_option("--kv-cache-gib", flags.gib, help)
                  ->type_name("GIB")
                  ->check(Between(kLeastGib, 1e6))
                  ->group(group);
  command.add_option("--num-kv-blocks", flags.num_blocks, "the same in blocks")
      ->type_name("N")
      ->check(Between(1, 1 << 30))
      ->excludes(gib)
      ->group(group);
  command
      .add_option("--kv-offload-gib", flags.offload_gib,
                  absl::StrCat(whose,
                               ", that keeps copies of cached prefixes: GPUs take those back for "
                               "which their KV cache had no room (default: none)"))
      ->type_name("GIB")
      ->check(Between(kLeastGib, 1e6))
      ->group(group);
}

void AddControllerFlags(CLI::App& command, ControllerFlags& flags) {
  const char* group = "Service";
  command.add_option("--listen", flags.listen, "where clients connect; port 0 = any free one")
      ->type_name("HOST:PORT")
      ->check(HostAndPort())
      ->capture_default_str()
      ->group(group);
  auto* http = command
                   .add_option("--http-listen", flags.http_listen,
                               "answer OpenAI's HTTP API there, by `lockstep gateway` as a child "
                               "process, with --listen's TLS and tokens; port 0 = any free one "
                               "(default: nowhere)")
                   ->type_name("HOST:PORT")
                   ->check(HostAndPort())
                   ->group(group);
  command
      .add_option("--access-log", flags.access_log,
                  "append a line of JSON for each request there: who, what, status, tokens, "
                  "times; no texts (default: none)")
      ->type_name("FILE")
      ->needs(http)
      ->group(group);
  command
      .add_option("--metrics-listen", flags.metrics_listen,
                  "where Prometheus reads GET /metrics, with --listen's TLS and tokens; port 0 = "
                  "any free one (default: nowhere)")
      ->type_name("HOST:PORT")
      ->check(HostAndPort())
      ->group(group);
  AddAllowedHostFlag(command, group, flags.allowed_hosts);
  AddAllowedOriginFlag(command, group, flags.allowed_origins)->needs(http);
  command
      .add_option("--served-model-name", flags.served_model_name,
                  "what clients call the model (default: its directory's name; of a Hugging Face "
                  "cache OWNER/NAME)")
      ->type_name("NAME")
      ->check(&CheckModelName, "")
      ->group(group);
  command
      .add_option("--chat-template", flags.chat_template,
                  "how the model wants a conversation written (Jinja), if not as its own files say")
      ->type_name("FILE")
      ->group(group);
  command
      .add_option("--max-queue", flags.max_queue,
                  "waiting requests of each replica; when all have so many, more are refused")
      ->type_name("N")
      ->check(Between(1, 1 << 20))
      ->capture_default_str()
      ->group("Limits");
  command
      .add_option(
          "--speculative-tokens", flags.speculative_tokens,
          "guess so many next tokens (0 to 32) of an output from what was written before, and "
          "check them in one step: the same answers, sooner where they quote; 0 = none")
      ->type_name("K")
      ->check(Between(0, 32))
      ->capture_default_str()
      ->group("Computation");
  command.add_flag("--no-prefix-cache", flags.no_prefix_cache, "compute every prompt in full")
      ->group("Limits");
  command
      .add_option("--drain-seconds", flags.drain_seconds,
                  "how long running requests may take to finish after Ctrl-C")
      ->type_name("SECONDS")
      ->check(Between(0, 1e6))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--journal", flags.journal,
          "record accepted requests there (prompts in clear, mode 0600): clients then go on "
          "after a restart of this program")
      ->type_name("FILE")
      ->group(group);
  command
      .add_option("--reattach-window-seconds", flags.reattach_seconds,
                  "how long a recorded request waits for its client")
      ->type_name("SECONDS")
      ->check(Between(1, 1e7))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--rank-timeout-seconds", flags.rank_timeout_seconds,
                  "how long a rank may say nothing (stopped, its storage hangs, its host is gone) "
                  "before it is lost; a killed one is noticed at once")
      ->type_name("SECONDS")
      ->check(Between(1, 3600))
      ->capture_default_str()
      ->group("Recovery");
  command
      .add_option("--replicas", flags.replicas,
                  "copies of the model, each on its own tp x pp ranks, that share the requests")
      ->type_name("R")
      ->check(Between(1, 256))
      ->capture_default_str()
      ->group("Layout");
  command.add_flag("--json", flags.json, "print events as JSON objects, one per line")
      ->group(group);
  AddServiceSecurityFlags(command, flags.security);
}

int ThreadsPerRank(const RankFlags& flags, int num_ranks, int num_cores) {
  if (flags.threads > 0) return flags.threads;
  if (num_cores == 0) num_cores = NumUsableCores();
  return std::max(1, num_cores / std::max(1, num_ranks));
}

std::vector<std::string> WorkerArguments(const ModelFlags& model, const RankFlags& rank,
                                         const WorkerLaunch& launch) {
  std::vector<std::string> arguments = {"worker",
                                        std::filesystem::absolute(model.model).string(),
                                        "--controller",
                                        launch.controller_address,
                                        "--secret-stdin",
                                        "--isa",
                                        rank.isa,
                                        "--dtype",
                                        rank.dtype,
                                        "--kv-cache-dtype",
                                        rank.kv_cache_dtype,
                                        "--quantize",
                                        model.quantize};
  const auto add = [&](const char* name, uint64_t value) {
    arguments.push_back(name);
    arguments.push_back(absl::StrCat(value));
  };
  if (!launch.weight_memory.empty()) {
    arguments.insert(arguments.end(), {"--weight-memory", launch.weight_memory});
  } else if (rank.weight_cache != "none" && rank.weight_cache != "memory") {
    arguments.insert(arguments.end(),
                     {"--weight-cache", std::filesystem::absolute(rank.weight_cache).string()});
  }
  arguments.insert(arguments.end(), {"--device", rank.device, "--gpu-memory-utilization",
                                     absl::StrCat(rank.gpu_memory_utilization)});
  if (rank.shares_gpus) arguments.push_back("--share-gpus");
  if (rank.deterministic) arguments.push_back("--deterministic");
  if (rank.shares_cores) arguments.push_back("--share-cores");
  add("--replica", static_cast<uint64_t>(launch.replica));
  add("--epoch", launch.epoch);
  add("--preflight-seconds", static_cast<uint64_t>(launch.preflight_seconds));
  add("--rejoin-seconds", 0);  // the job ends with its launcher
  add("--tp", static_cast<uint64_t>(model.tp));
  add("--pp", static_cast<uint64_t>(model.pp));
  if (rank.threads > 0) add("--threads-per-rank", static_cast<uint64_t>(rank.threads));
  if (launch.num_kv_blocks > 0) add("--num-kv-blocks", static_cast<uint64_t>(launch.num_kv_blocks));
  if (launch.kv_offload_gib > 0) {
    arguments.insert(
        arguments.end(),
        {"--kv-offload-gib", absl::StrFormat("%.9g", std::max(launch.kv_offload_gib, kLeastGib))});
  }
  add("--block-size", static_cast<uint64_t>(model.block_size));
  add("--max-num-seqs", static_cast<uint64_t>(model.max_num_seqs));
  add("--max-batched-tokens", static_cast<uint64_t>(model.max_batched_tokens));
  if (model.max_model_len > 0) add("--max-model-len", static_cast<uint64_t>(model.max_model_len));
  const std::vector<std::string> tls = RankTlsArguments(launch.tls);
  arguments.insert(arguments.end(), tls.begin(), tls.end());
  arguments.push_back("--announce");
  if (launch.allow_tp_across_nodes) arguments.push_back("--allow-tp-across-nodes");
  if (!launch.network.empty()) arguments.insert(arguments.end(), {"--network", launch.network});
  if (!launch.host_places.empty()) {
    arguments.insert(arguments.end(), {"--host-places", launch.host_places});
  }
  return arguments;
}

}  // namespace lockstep
