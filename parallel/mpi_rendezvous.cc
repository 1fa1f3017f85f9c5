// Ranks of an MPI job meet at rank 0, over a communicator that carries nothing else:
//
//   rank r -> 0  Here(round, epoch)   r waits for that round and has nothing under way any more
//   0 -> all     Over(round)          as soon as anybody is Here for the next one
//   0 -> all     Go(round, epoch)     all are Here; then all make groups together
//   r -> 0, 0 -> all  Left            r will not come again
//
// A few bytes per rank and round, all eager. Nobody can be sure that the others notice: each rank
// looks at its mail while it waits (Over, called from idle waits and from waits in a group).
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_clock.h"
#include "parallel/mpi_groups.h"
#include "parallel/mpi_start_mail.h"
#include "parallel/polite_wait.h"

namespace lockstep {
namespace {

constexpr absl::Duration kOverInterval = absl::Milliseconds(100);
const PoliteWait::Policy kMailPolicy{
    .spin = {}, .yield = {}, .longest_pause = std::chrono::microseconds(20000)};

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

class MpiRendezvous final : public Rendezvous {
 public:
  // hosts: of each rank.
  MpiRendezvous(MpiHandle control, const MpiSession& session, const ProcessGrid& grid,
                const MpiOptions& options, std::vector<std::string> hosts);
  ~MpiRendezvous() override;

  absl::StatusOr<Round> Next(uint64_t epoch, absl::Duration timeout) override;
  bool Over() override;
  void Leave() override;

 private:
  enum Tag { kHere = 1, kOver, kGo, kLeft };
  struct Mail {
    uint64_t round = 0;
    uint64_t epoch = 0;
  };
  struct Outgoing {
    MPI_Request request = MPI_REQUEST_NULL;
    Mail mail;
  };

  bool is_root() const { return rank_ == kRootRank; }
  void Send(int to, Tag tag, const Mail& mail);
  void SendAll(Tag tag, const Mail& mail);  // from the root
  void ForgetSent();
  absl::Status ReadMail();
  void Handle(int from, int tag, const Mail& mail);
  void NoteHere(int from, const Mail& mail);
  void NoteOver();
  void NoteLeft();
  absl::Status WaitForGo(uint64_t round, absl::Duration timeout);
  absl::Status Missing(absl::Duration timeout) const;

  MpiHandle control_;
  const MpiSession& session_;
  const ProcessGrid grid_;
  const MpiOptions options_;
  const int rank_;
  const std::vector<std::string> hosts_;
  std::deque<Outgoing> sent_;  // until MPI has taken them; a deque, as MPI holds their addresses

  uint64_t round_ = 0;  // begun; 0: none yet
  uint64_t epoch_ = 0;  // of that round
  bool over_ = false;   // that round
  bool left_ = false;   // somebody
  absl::Time next_look_ = absl::InfinitePast();

  // The root's, for the next round.
  std::vector<bool> is_here_;
  uint64_t proposed_epoch_ = 0;
};

MpiRendezvous::MpiRendezvous(MpiHandle control, const MpiSession& session, const ProcessGrid& grid,
                             const MpiOptions& options, std::vector<std::string> hosts)
    : control_(std::move(control)),
      session_(session),
      grid_(grid),
      options_(options),
      rank_(session.rank()),
      hosts_(std::move(hosts)),
      is_here_(hosts_.size()) {}

// A rank may leave with mail unread, which must not reach a later communicator of the same number.
MpiRendezvous::~MpiRendezvous() {
  ForgetSent();
  control_.Keep();
}

// ---- mail ----

void MpiRendezvous::Send(int to, Tag tag, const Mail& mail) {
  ForgetSent();
  Outgoing& out = sent_.emplace_back();
  out.mail = mail;
  MPI_Isend(&out.mail, sizeof(Mail), MPI_BYTE, to, tag, control_.get(), &out.request);
}

void MpiRendezvous::SendAll(Tag tag, const Mail& mail) {
  for (int rank = 0; rank < grid_.world_size(); ++rank) {
    if (rank != rank_) Send(rank, tag, mail);
  }
}

void MpiRendezvous::ForgetSent() {
  for (int done = 1; !sent_.empty() && done != 0;) {
    MPI_Test(&sent_.front().request, &done, MPI_STATUS_IGNORE);
    if (done != 0) sent_.pop_front();
  }
}

absl::Status MpiRendezvous::ReadMail() {
  while (true) {
    int waits = 0;
    MPI_Status status;
    RETURN_IF_ERROR(FromMpi(
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, control_.get(), &waits, &status), "MPI_Iprobe"));
    if (waits == 0) return absl::OkStatus();
    Mail mail;
    RETURN_IF_ERROR(FromMpi(MPI_Recv(&mail, sizeof(mail), MPI_BYTE, status.MPI_SOURCE,
                                     status.MPI_TAG, control_.get(), MPI_STATUS_IGNORE),
                            "MPI_Recv"));
    Handle(status.MPI_SOURCE, status.MPI_TAG, mail);
  }
}

void MpiRendezvous::Handle(int from, int tag, const Mail& mail) {
  switch (tag) {
    case kHere:
      return NoteHere(from, mail);
    case kOver:
      if (mail.round == round_) over_ = true;
      return;
    case kGo:
      round_ = mail.round;
      epoch_ = mail.epoch;
      over_ = false;
      return;
    case kLeft:
      return NoteLeft();
  }
}

// ---- meeting ----

void MpiRendezvous::NoteHere(int from, const Mail& mail) {
  is_here_[static_cast<size_t>(from)] = true;
  proposed_epoch_ = std::max(proposed_epoch_, mail.epoch);
  NoteOver();
  if (std::find(is_here_.begin(), is_here_.end(), false) != is_here_.end()) return;
  std::fill(is_here_.begin(), is_here_.end(), false);
  ++round_;
  epoch_ = std::exchange(proposed_epoch_, 0);
  over_ = false;
  SendAll(kGo, {round_, epoch_});
}

void MpiRendezvous::NoteOver() {
  if (over_ || round_ == 0) return;
  over_ = true;
  SendAll(kOver, {round_, epoch_});
}

void MpiRendezvous::NoteLeft() {
  if (std::exchange(left_, true) || !is_root()) return;
  SendAll(kLeft, {});
}

void MpiRendezvous::Leave() {
  if (is_root()) return NoteLeft();
  if (!std::exchange(left_, true)) Send(kRootRank, kLeft, {});
}

bool MpiRendezvous::Over() {
  const absl::Time now = SteadyNow();
  if (over_ || now < next_look_) return over_;
  next_look_ = now + kOverInterval;
  if (!ReadMail().ok()) over_ = true;  // Next will tell why
  return over_;
}

absl::StatusOr<Rendezvous::Round> MpiRendezvous::Next(uint64_t epoch, absl::Duration timeout) {
  const uint64_t wanted = round_ + 1;
  if (is_root()) {
    NoteHere(rank_, {wanted, epoch});
  } else {
    Send(kRootRank, kHere, {wanted, epoch});
  }
  RETURN_IF_ERROR(WaitForGo(wanted, timeout));
  Round round{epoch_, {}};
  ASSIGN_OR_RETURN(round.groups,
                   MakeGroupsOf(control_.get(), session_, grid_,
                                {.options = options_, .is_over = [this] { return Over(); }}));
  return round;
}

absl::Status MpiRendezvous::WaitForGo(uint64_t round, absl::Duration timeout) {
  const absl::Time deadline = SteadyNow() + (is_root() ? timeout : timeout + kRootFirst);
  PoliteWait wait(kMailPolicy);
  while (true) {
    RETURN_IF_ERROR(ReadMail());
    ForgetSent();
    if (round_ == round) return absl::OkStatus();
    if (left_) return absl::CancelledError("a rank has left the job");
    if (SteadyNow() >= deadline) return Missing(timeout);
    wait.Pause();
  }
}

absl::Status MpiRendezvous::Missing(absl::Duration timeout) const {
  const std::string when = absl::StrCat(" within ", absl::FormatDuration(timeout));
  if (!is_root()) {
    return absl::DeadlineExceededError(
        absl::StrCat("rank 0 has not called the ranks together", when));
  }
  std::vector<std::string> missing;
  for (size_t rank = 0; rank < is_here_.size(); ++rank) {
    if (!is_here_[rank]) missing.push_back(absl::StrCat(rank, " (", hosts_[rank], ")"));
  }
  return absl::DeadlineExceededError(absl::StrCat("rank ", absl::StrJoin(missing, ", "), " of ",
                                                  is_here_.size(), " did not come", when));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Rendezvous>> MakeMpiRendezvous(const MpiSession& session,
                                                              const ProcessGrid& grid,
                                                              const MpiOptions& options) {
  RETURN_IF_ERROR(CheckGridFits(session, grid));
  // First, as it names late ranks, while MPI would wait for them for ever.
  ASSIGN_OR_RETURN(std::vector<std::string> hosts, session.AllGather(HostName()));
  MPI_Comm comm = MPI_COMM_NULL;
  RETURN_IF_ERROR(FromMpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup"));
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  MpiHandle control(comm);
  return std::make_unique<MpiRendezvous>(std::move(control), session, grid, options,
                                         std::move(hosts));
}

}  // namespace lockstep
