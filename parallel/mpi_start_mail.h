// What the ranks of a job say to each other before it has met, when some may be late, or hang:
// messages over MPI_COMM_WORLD, on which nothing else travels, instead of MPI's collectives, which
// wait for ever and do not tell for whom. For the MPI bodies only (this header includes mpi.h).
#pragma once

#include <mpi.h>

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace lockstep {

// The rank at which the others meet. It knows who is missing, so it gives up first.
inline constexpr int kRootRank = 0;
inline constexpr absl::Duration kRootFirst = absl::Seconds(2);

// One exchange. DEADLINE_EXCEEDED names the ranks that are late; UNAVAILABLE has MPI's text. After
// an error the job can only be ended.
class StartMail {
 public:
  using Texts = std::map<int, std::string>;  // by rank

  StartMail(int rank, int num_ranks, absl::Duration patience);
  StartMail(const StartMail&) = delete;
  StartMail& operator=(const StartMail&) = delete;
  ~StartMail();

  absl::Status Send(int to, std::string bytes);
  absl::Status SendAll(const std::string& bytes);
  // Until all that was sent has been taken.
  absl::Status Finish();
  absl::StatusOr<std::string> ReceiveOf(int rank);
  // One message of each.
  absl::StatusOr<Texts> Receive(std::set<int> ranks);

  // Several texts as one.
  static std::string Pack(const std::vector<std::string>& texts);
  static std::vector<std::string> Unpack(absl::string_view packed);

 private:
  struct Outgoing {
    int to = 0;
    std::string bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  static absl::StatusOr<std::optional<std::string>> Poll(int rank);
  absl::Status Late(const std::set<int>& ranks) const;

  const int rank_;
  const int num_ranks_;
  const absl::Duration patience_;
  const absl::Time deadline_;
  std::deque<Outgoing> sent_;  // MPI holds their addresses
};

}  // namespace lockstep
