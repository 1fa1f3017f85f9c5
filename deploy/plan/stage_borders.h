// What passes between pipeline stages on GPUs, how long it takes and what memory it holds, by the
// functions that the runtime sends by (parallel/hand_over.h). Pure; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "deploy/plan/collectives.h"
#include "deploy/plan/weight_bytes.h"

namespace lockstep::plan {

// Behind each stage but the last: hidden states of up to so many bytes go on whole, which is none
// where the next stage lies on another node. Ranks fill nodes in order, stage by stage.
std::vector<int64_t> MostWholeBytesOfBorders(const Layout& layout, int gpus_per_node);

// Hidden states of `bytes`: whole, or a slice from each of tp ranks over a network card of its own,
// then gathered.
double HandOverSeconds(const Interconnect& net, int tp, int64_t most_whole_bytes, double bytes);

// Memory of one rank of `stage` for messages under way, from the stage before and to the next.
// hidden_states: f32, the most of a step.
int64_t HandOverMemoryBytes(const Layout& layout, int gpus_per_node, int stage,
                            int64_t hidden_states);

}  // namespace lockstep::plan
