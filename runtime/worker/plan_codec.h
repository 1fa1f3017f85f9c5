// engine::StepPlan and engine::StepResult <-> their messages. Used by both ends of the link; pure,
// thread-free.
//
// Decoding checks what a message alone can show (ranges, parallel arrays, signs); what depends on a
// rank's state (slots open, blocks in range) is checked by SlotTable, what depends on the plan in
// flight by the engine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lockstep/v1/worker.pb.h"
#include "runtime/engine/step_plan.h"

namespace lockstep {

// Keeps the order of plan.work: its trailing run of decodes (one token, sampled) travels as
// decode_slots, what lies before it as chunks. Engines that put decodes last thus pay one varint
// per decode.
void EncodePlan(const engine::StepPlan& plan, v1::StepPlan* message);
// INVALID_ARGUMENT naming the field and its value.
absl::StatusOr<engine::StepPlan> DecodePlan(const v1::StepPlan& message);

// The slots whose entries sample, in the plan's order: what a result's tokens belong to.
std::vector<uint32_t> SamplingSlots(const engine::StepPlan& plan);

// Slots of sampled tokens do not travel.
void EncodeResult(const engine::StepResult& result, v1::StepResult* message);
// sampling_slots: SamplingSlots of the plan with message.step_id(), one per token. Token ids must
// lie in [0, vocab_size). INVALID_ARGUMENT naming the field and its value.
absl::StatusOr<engine::StepResult> DecodeResult(const v1::StepResult& message,
                                                std::span<const uint32_t> sampling_slots,
                                                int64_t vocab_size);

}  // namespace lockstep
