// What `lockstep serve` and `lockstep controller` print: lines for people, or one JSON object per
// event.
//
// Used by main's thread only. Progress of loading is a bar on a terminal, a line every two seconds
// elsewhere. What is printed is a log: serving does not wait for who reads it, and does not end
// when its reader goes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "launcher/base/background_writer.h"
#include "launcher/job/restart_policy.h"
#include "launcher/serving/capacity.h"
#include "model/checkpoint/inspect.h"
#include "nlohmann/json.hpp"
#include "runtime/controller/controller.h"

namespace lockstep {

inline constexpr char kBeforeServing[] = "before serving";  // how it stopped

class ServeReport {
 public:
  ServeReport(bool json, const ModelFlags& model, int num_replicas);

  // Warns of tensors that the files hold and the model does not use, and of what texts miss.
  // name: what clients call it.
  void Model(const ModelSummary& summary, const std::string& name);
  // threads_per_rank: nothing where ranks find out themselves.
  void Plan(const PlannedCapacity& capacity, std::optional<int> threads_per_rank);
  // Of one request of the load that was predicted for.
  void Predicted(const ServedLoad& load, const SpeedPrediction& prediction);
  // Where ranks that are placed by hand connect.
  void WaitingForRanks(const std::string& worker_address, const std::string& secret_file);
  void RankJoined(const ControllerEvent& event);
  // Told when all ranks of the replica have been checked.
  void RankChecked(const ControllerEvent& event);
  void RankLoading(const ControllerEvent& event);
  void RankLoaded(const ControllerEvent& event);
  // Told of the fullest when all ranks of the replica have.
  void RankRehearsed(const ControllerEvent& event);
  // "ready" the first time, however many starts that took; "ready_again" after a loss since.
  void Serving(const ControllerEvent& event, const std::string& address);
  // is_final: else Restarting follows and tells it to people, once more is known.
  void RankLost(const ControllerEvent& event, bool is_final);
  struct Restart {
    int replica = 0;
    uint64_t epoch = 0;  // that begins
    std::string reason;
    absl::Duration delay;
    int num_recent = 0;
    RestartLimits limits;
  };
  void Restarting(const Restart& restart);
  // A replica starts no more; others go on.
  void GivenUp(int replica, absl::string_view reason);
  // Ranks placed by hand are gone; others may come.
  void Waiting(absl::string_view message);
  // rank < 0: what starts the ranks, mpirun or srun.
  void RankOutput(int replica, int rank, absl::string_view text, absl::string_view starter = "");
  // Where OpenAI's clients connect.
  void Gateway(const std::string& url, int64_t pid) {
    Tell("gateway", {{"url", url}, {"pid", pid}}, absl::StrCat("Gateway  ", url, "/v1"));
  }
  // Where they are read.
  void Metrics(const std::string& url) { Tell("metrics", {{"url", url}}, "Metrics  " + url); }
  void Warn(const std::vector<std::string>& warnings);
  void Draining(double seconds);
  // What was measured since the start, beside what is predicted of that load.
  void Served(const ServedLoad& load, const std::optional<SpeedPrediction>& prediction);
  void Stopped(absl::string_view how);
  // The launch is over; `lockstep serve: message` follows on stderr.
  void Failed(absl::string_view message);
  // Waits until what was told is printed, for a moment.
  void Flush();

 private:
  using Json = nlohmann::ordered_json;
  void PrintModel(const ModelSummary& summary);
  void PrintJson(const char* event, Json fields);
  void PrintLine(const std::string& line);
  // Either, as it is wanted.
  void Tell(const char* event, Json fields, const std::string& line);
  void DrawProgress(int64_t done, int64_t total, absl::Duration elapsed);
  // "Replica 1: " when there are several.
  std::string Prefix(int replica) const;
  void ClearProgress();
  void PrintError(const std::string& line);

  BackgroundWriter err_;
  BackgroundWriter out_;
  const bool json_;
  const int tp_;
  const int pp_;
  const std::string quantize_;
  const int num_replicas_;
  const int block_size_;
  const bool is_terminal_;
  const absl::Time started_;
  absl::Time next_progress_;
  bool progress_shown_ = false;

  struct RankProgress {
    int64_t done = 0;
    int64_t total = 0;
  };
  // The present start of a replica.
  struct Loading {
    uint64_t epoch = 0;  // 0: no rank has joined
    absl::Time since;
    std::map<int, RankProgress> ranks;
    int num_loaded = 0;
    int num_mapped = 0;                     // of them, with weights that were packed already
    std::map<int, ControllerEvent> checks;  // by rank
    std::map<int, ControllerEvent> rehearsals;
  };
  Loading& LoadingOf(int replica);
  void Replaced(const ControllerEvent& joined, uint64_t old_epoch);
  std::map<int, Loading> loading_;  // by replica
  std::set<int> have_served_;       // replicas, be it that they lost ranks before or since
  std::map<int, absl::Time> lost_at_;
  std::string name_;
  int64_t kv_bytes_per_token_ = 0;
  bool has_fp8_cache_ = false;
};

}  // namespace lockstep
