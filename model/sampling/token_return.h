// The way of chosen tokens from the last stage of a pipeline back to the first, between their
// devices: no host waits for them, and a stage issues steps whose tokens are still to be chosen.
//
// One message for each step that samples, in step order. The first stage keeps the token that each
// sequence sampled last in a table by place (its slot), as its own device's. Used by the step
// loop's thread; all memory is taken at Create. Errors: those of the group.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/token_choice.h"
#include "parallel/communicator.h"

namespace lockstep {

class TokenReturn {
 public:
  // For the first or the last rank of `pp`, a group between devices with a way back for
  // MessageBytes(num_places); both must outlive it. RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<TokenReturn>> Create(Backend& backend, Communicator& pp,
                                                             int64_t num_places);
  static constexpr int64_t MessageBytes(int64_t num_places) {
    return num_places * int64_t{sizeof(ChosenToken)};
  }
  // Of the device, that this takes on the first of so many stages, or the last.
  static constexpr int64_t DeviceBytes(int64_t num_places, int num_stages, bool is_first) {
    if (!is_first) return MessageBytes(num_places);
    return MessagesBytes(num_places, num_stages) + PlacesBytes(num_places, num_stages) +
           MessageBytes(num_places);
  }

  // Forgets messages that were expected: their group has ended.
  void Forget() { expected_.clear(); }

  // ---- last stage: the next message ----
  // `count` >= 1 tokens on the device, which may be overwritten at once.
  absl::Status Send(const ChosenToken* chosen, int64_t count);
  // Of the host.
  absl::Status Send(std::span<const int32_t> tokens);

  // ---- first stage ----
  // That of step `step_id`, whose own work has been issued, with a token for each place.
  absl::Status Expect(uint64_t step_id, std::span<const int32_t> places);
  // Work issued from now on finds the tokens of steps up to step_id in the table.
  absl::Status Await(uint64_t step_id);
  const ChosenToken* table() const { return table_.as<ChosenToken>(); }  // [num_places]

 private:
  struct Message {
    uint64_t step_id = 0;
    int64_t count = 0;
  };

  TokenReturn(Backend& backend, Communicator& pp, int64_t num_places)
      : backend_(backend), pp_(pp), num_places_(num_places) {}
  absl::Status Allocate();
  void WarmUp();
  absl::Status AwaitOldest();
  // As many as a controller lets steps run ahead, and one.
  static constexpr int64_t MostExpected(int num_stages) { return num_stages + 2; }
  int64_t most_expected() const { return MostExpected(pp_.size()); }
  static constexpr int64_t MessagesBytes(int64_t num_places, int num_stages) {
    return MostExpected(num_stages) * MessageBytes(num_places);
  }
  static constexpr int64_t PlacesBytes(int64_t num_places, int num_stages) {
    return MostExpected(num_stages) * num_places * int64_t{sizeof(int32_t)};
  }

  Backend& backend_;
  Communicator& pp_;
  const int64_t num_places_;
  // First stage: of the messages expected, by turns.
  DeviceBuffer tokens_;  // [most_expected(), num_places_]
  DeviceBuffer places_;  // likewise
  DeviceBuffer table_;
  std::deque<Message> expected_;
  int64_t num_awaited_ = 0;
  // Last stage: tokens of the host.
  std::vector<ChosenToken> host_tokens_;
  DeviceBuffer sent_;
};

}  // namespace lockstep
