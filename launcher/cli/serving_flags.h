// The flags of serving: what `serve`, `controller` and `worker` share, and their way from the first
// to the last.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/cli/command.h"
#include "launcher/cli/security_flags.h"

namespace lockstep {

// What controller and ranks must agree on.
struct ModelFlags {
  std::string model;  // directory
  std::string quantize = "none";
  int tp = 1;
  int pp = 1;
  int block_size = 16;
  int max_num_seqs = 256;
  int max_batched_tokens = 2048;
  int64_t max_model_len = 0;  // 0 = the model's
};

inline constexpr int kMaxThreadsPerRank = 4096;

// How a rank computes.
struct RankFlags {
  int threads = 0;  // 0 = cores / ranks on this host
  bool shares_cores = false;
  std::string isa = "auto";
  std::string dtype = "auto";
  std::string kv_cache_dtype = "auto";
  std::string weight_cache = "none";  // or a directory; of serve also "memory"
  std::string device = "auto";
  bool shares_gpus = false;
  double gpu_memory_utilization = 0.9;
  bool deterministic = false;
};

struct KvCacheFlags {
  std::optional<double> gib;  // over all ranks; of `worker`: of that rank
  std::optional<int64_t> num_blocks;
  std::optional<double> offload_gib;  // of the host's memory, likewise
};

// What the controller alone decides.
struct ControllerFlags {
  std::string listen = "127.0.0.1:50051";
  std::string served_model_name;             // empty: ModelNameOf the model
  std::string chat_template;                 // file; empty: the model's own
  std::string http_listen;                   // empty: nowhere
  std::string access_log;                    // a file, of http_listen's requests; empty: none
  std::string metrics_listen;                // likewise
  std::vector<std::string> allowed_hosts;    // HttpServerOptions::allowed_hosts of both
  std::vector<std::string> allowed_origins;  // HttpServerOptions::allowed_origins of http_listen
  int max_queue = 1024;
  int speculative_tokens = 0;
  bool no_prefix_cache = false;
  double drain_seconds = 30.0;
  int replicas = 1;
  std::string journal;
  double reattach_seconds = 600.0;
  double rank_timeout_seconds = 5.0;
  bool json = false;
  ServiceSecurityFlags security;
};

void AddModelFlags(CLI::App& command, ModelFlags& flags);
void AddRankFlags(CLI::App& command, RankFlags& flags);
// names: of these, and of f32, bf16 and f16 the long ones, too.
CLI::Option* AddDTypeFlag(CLI::App& command, const std::vector<std::string>& names,
                          const char* help, std::string& dtype);
void AddWeightCacheFlag(CLI::App& command, const char* help, RankFlags& flags);
// help: of --kv-cache-gib. whose: "memory of hosts, of this rank", that of --kv-offload-gib.
void AddKvCacheFlags(CLI::App& command, const char* help, const char* whose, KvCacheFlags& flags);
void AddControllerFlags(CLI::App& command, ControllerFlags& flags);

// num_cores for each of num_ranks ranks, at least one; of this machine, unless told.
int ThreadsPerRank(const RankFlags& flags, int num_ranks, int num_cores = 0);

// The command line of a rank, without the program: "worker MODEL --controller ... --tp ...". The
// secret comes over standard input.
struct WorkerLaunch {
  std::string controller_address;
  int replica = 0;
  uint64_t epoch = 1;
  int64_t num_kv_blocks = 0;  // 0: as many as a rank has room for
  double kv_offload_gib = 0;  // of each rank
  // How long ranks that start wait for each other: longer than who watches them waits for all.
  int64_t preflight_seconds = 0;
  bool allow_tp_across_nodes = false;
  RankTlsFlags tls;
  std::string network;        // of ranks on several hosts; empty: any
  std::string host_places;    // launcher/cli/host_places.h; empty: the job's own ranks alone
  std::string weight_memory;  // socket of a WeightMemory; empty: none
};
std::vector<std::string> WorkerArguments(const ModelFlags& model, const RankFlags& rank,
                                         const WorkerLaunch& launch);

}  // namespace lockstep
