// How the ranks of one job come together, and come together anew after they lost touch with their
// controller: each round has groups of its own, so that nothing of an aborted step can be taken for
// a message of the next.
//
// One instance per rank, used by its busy thread. A rank leaves its round by calling Next; the
// others learn it from Over, from a wait in their groups that ends, or from their own lost stream.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "parallel/communicator.h"
#include "parallel/process_grid.h"

namespace lockstep {

class Rendezvous {
 public:
  struct Round {
    uint64_t epoch = 0;  // the same on all ranks
    RankGroups groups;
  };

  virtual ~Rendezvous() = default;

  // Waits, asleep, until every rank has called it, then makes groups for the next round, whose
  // epoch is the highest that a rank proposed. The groups of the round before must have been
  // aborted, and must exist until this returns together with all memory they were given: a peer may
  // still be reading it. Errors: DEADLINE_EXCEEDED naming the ranks that did not come within
  // timeout; CANCELLED when a rank has left (Leave); else as Communicator's. The job is then at its
  // end.
  virtual absl::StatusOr<Round> Next(uint64_t epoch, absl::Duration timeout) = 0;

  // Has another rank left this round by calling Next? Looks at most every 100 ms.
  virtual bool Over() = 0;

  // This rank will never come again, because it was told to end: nobody shall wait for it.
  virtual void Leave() = 0;
};

// Ranks as threads of this process (tests): element r belongs to rank r.
std::vector<std::unique_ptr<Rendezvous>> MakeInProcessRendezvous(const ProcessGrid& grid);

}  // namespace lockstep
