// config.json documents that differ in one field, and what is read of them.
#pragma once

#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "model/model_config.h"
#include "nlohmann/json.hpp"

namespace lockstep::testing {

inline nlohmann::json With(nlohmann::json config, const std::string& field, nlohmann::json value) {
  config[field] = std::move(value);
  return config;
}

inline nlohmann::json Without(nlohmann::json config, const std::string& field) {
  config.erase(field);
  return config;
}

inline ModelConfig ParsedConfig(const nlohmann::json& config) {
  const auto parsed = ParseModelConfig(config.dump());
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.value_or(ModelConfig());
}

}  // namespace lockstep::testing
