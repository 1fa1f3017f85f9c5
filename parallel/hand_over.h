// How a stage hands its hidden states to the next one.
//
// Every tp_rank of the first has all of them and every tp_rank of the next wants all of them. They
// go whole, from each tp_rank to its peer; or in slices: each sends its part alone, and the next
// stage gathers. Then every number crosses the border between the stages once instead of tp times,
// and every host sends over as many network cards as it has ranks. Which of both, ranks know from
// the size and from RankGroups, the same on both sides. Steps that are divided anyhow
// (parallel/token_split.h) go as they are, each tp_rank's tokens to its peer. Bits are copied, so
// they stay what they were.
//
// Used by the step loop's thread. Errors as Communicator's.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "parallel/communicator.h"
#include "parallel/process_grid.h"
#include "parallel/token_split.h"

namespace lockstep {

// Between devices of one host: up to here a message takes no longer than the ranks of a group need
// to begin a gathering (some 10 us, at some 100 GB/s). Above, slices take as long as the whole
// and need less memory on their way. Ranks on one host's CPUs share its memory: they always copy
// the whole, rather than wait for each other once more.
constexpr int64_t kMostWholeBytesBetweenDevices = int64_t{1} << 20;

// What RankGroups says of the border behind `stage`: 0 when a rank of it and its peer in the next
// stage lie on different nodes. nodes: by rank; those with the same number share memory.
int64_t MostWholeBytes(const ProcessGrid& grid, std::span<const int> nodes, int stage);

// Floats of each tp_rank's slice of `count`: whole 16 bytes, equal for all, so that the last slices
// may reach beyond `count`, or lie there.
int64_t SliceFloats(int64_t count, int tp);
// The room that hidden states of up to so many tokens need, for slices that reach beyond them.
int64_t HandOverFloats(int64_t max_tokens, int64_t width, int tp);
// The longest message of hand-overs of up to `count` floats; grows with count.
int64_t LongestMessageBytes(int64_t count, int tp, int64_t most_whole_bytes);

// hidden: f32 [HandOverFloats], of the groups' memory; the first tokens.num_tokens rows of `width`
// are the hidden states of a step, of which a divided one has tokens.mine alone, on either side.
// The next stage calls Receive, then Gather, for the same tokens.
absl::Status SendToNextStage(RankGroups& groups, const float* hidden, const TokenSplit& tokens,
                             int64_t width);
absl::Status ReceiveFromPreviousStage(RankGroups& groups, float* hidden, const TokenSplit& tokens,
                                      int64_t width);
absl::Status GatherReceived(RankGroups& groups, float* hidden, const TokenSplit& tokens,
                            int64_t width);

}  // namespace lockstep
