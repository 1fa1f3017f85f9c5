// Small models of the families that share Llama's layers, with numbers of an independent
// implementation (families/make.py).
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "tests/model/llama/golden.h"
#include "tests/model/llama/stage_driver.h"
#include "tests/model/llama/temporary_model.h"

namespace lockstep::testing {

// Of them one whose layers see 24 tokens back.
inline constexpr std::array kFamilyModels = {"mistral", "mistral_window", "qwen2", "qwen3",
                                             "qwen3_yarn"};

struct FamilyModel {
  std::unique_ptr<TemporaryModel> model;  // f32
  std::vector<GoldenCase> cases;
  std::vector<Request> requests;  // one for each case
  DriveOptions options;           // without a backend
};

FamilyModel MakeFamilyModel(const std::string& name);
void ExpectGoldenNumbers(const FamilyModel& family, const DriveOptions& options);

}  // namespace lockstep::testing
