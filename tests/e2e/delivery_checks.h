// What must be true of a delivery whatever the model computes.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/e2e/delivery.h"
#include "tests/e2e/server_facts.h"

namespace lockstep::testing {

// Ids, counts, text, stops, log-probabilities, finish reasons and usage against the request.
Problems CheckDelivery(const ServerFacts& facts, const v1::GenerateRequest& request,
                       const std::vector<int32_t>& prompt, const Delivery& delivery);

// Every token must be one that the sampling options allow, as far as the log-probabilities of the
// most likely tell.
Problems CheckChoices(const v1::GenerateRequest& request, const Delivery::Output& output);

// One token's log-probabilities. count: of the most likely, as asked.
Problems CheckLogprobs(const ServerFacts& facts, const v1::Logprobs& given, int32_t token,
                       int count);

}  // namespace lockstep::testing
