// What the ranks of a replica found before they read weights, as people and programs read it. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "runtime/controller/controller_event.h"

namespace lockstep {

struct PreflightSummary {
  struct Host {
    std::string name;
    std::vector<int> ranks;
    int64_t needed_bytes = 0;     // sum over them
    int64_t available_bytes = 0;  // the least that any of them saw; of GPUs, their sum
  };
  struct Stage {
    // The slowest of its ranks.
    std::optional<RankCheck::Link> tp;
    std::optional<RankCheck::Link> next_stage;
  };
  std::vector<Host> hosts;
  std::vector<Stage> stages;
};

// checks: the kRankChecked event of every rank.
PreflightSummary SummarizePreflight(int tp, int pp, const std::map<int, ControllerEvent>& checks);

// Nothing for a rank that is alone.
std::vector<std::string> PreflightLines(const PreflightSummary& summary);
nlohmann::ordered_json PreflightJson(int replica, const PreflightSummary& summary);

}  // namespace lockstep
