// The GPUs of a replica's ranks: what they are, where they lie and how they reach each other, as
// people and programs read it. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "runtime/controller/controller_event.h"

namespace lockstep {

// checks: the kRankChecked event of every rank, by rank. Nothing where ranks compute on CPUs.
std::vector<std::string> GpuLines(const std::map<int, ControllerEvent>& checks);
nlohmann::ordered_json GpusJson(const std::map<int, ControllerEvent>& checks);

// For each tensor parallel group whose GPUs do not all reach each other, which adds up through the
// host's memory: a line that names two of its ranks.
std::vector<std::string> GpuWarnings(int tp, const std::map<int, ControllerEvent>& checks);

// rehearsals: the kRankRehearsed event of every rank, by rank. How the GPU with the least memory
// left for the KV cache is filled; empty where ranks compute on CPUs.
std::string MemoryLine(const std::map<int, ControllerEvent>& rehearsals);
nlohmann::ordered_json RehearsalJson(const ControllerEvent& event);

}  // namespace lockstep
