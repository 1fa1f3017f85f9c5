// What tests/gpu/run.sh measured, in short, each figure beside its target. Pure.
//
// A figure that misses its target is told, and is no failure: machines differ.
#pragma once

#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace lockstep::bench {

// What programs kept; null: it was not measured. Of a report that is cut short what is there
// counts.
struct Reports {
  nlohmann::json bf16 = nullptr;  // gpu_bench's
  nlohmann::json fp8 = nullptr;
  nlohmann::json no_overlap = nullptr;
  nlohmann::json deterministic = nullptr;
  nlohmann::json transformers = nullptr;  // compare_transformers.py's
  nlohmann::json server_bf16 = nullptr;   // lockstep bench --json
  nlohmann::json server_fp8 = nullptr;
};

struct Figure {
  enum class Verdict { kNoTarget, kMet, kMissed };

  std::string what;         // "decode 1 x 1024"
  std::string detail = {};  // "150.1 tokens/s, 6.662 ms"
  std::string value = {};   // what has the target: "86.0 % of read bandwidth"
  std::string target = {};  // ">= 85 %"; or why there is none; or empty
  Verdict verdict = Verdict::kNoTarget;
};

struct Section {
  std::string title;
  std::vector<Figure> figures = {};
};

// Those of one device and its limits come first; sections without figures are left out.
std::vector<Section> FiguresOf(const Reports& reports);

// A line to each figure, and under them those that miss their targets once more.
std::string Format(const std::vector<Section>& sections);

}  // namespace lockstep::bench
