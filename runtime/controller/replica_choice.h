// Which replica a new request goes to. Pure.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep {

struct ReplicaLoad {
  bool queue_is_full = false;
  bool has_room = true;               // the request need not wait for slots or blocks
  int64_t num_sequences = 0;          // waiting and running
  int64_t num_uncomputed_tokens = 0;  // of their prompts
  int64_t num_cached_tokens = 0;      // of the new prompt, that need not be computed there
};

// The index of the replica that will have computed the prompt first, as far as counting tokens
// tells: what waits there already, less what the prefix cache saves. But a prefix that all requests
// share would draw all of them to one replica, where they wait for each other or slow each other
// down: one without room comes after those that have some, and so does one that has many more
// sequences than another (64, and half as many again). One whose queue is full comes last. At least
// one load.
int ChooseReplicaBy(std::span<const ReplicaLoad> loads);

}  // namespace lockstep
