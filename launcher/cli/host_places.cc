#include "launcher/cli/host_places.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace lockstep {
namespace {

constexpr int kMostRanks = 1 << 16;  // of a host

}  // namespace

std::string FormatHostPlaces(std::span<const HostPlace> places) {
  return absl::StrJoin(places, ",", [](std::string* out, const HostPlace& each) {
    absl::StrAppend(out, each.place, "/", each.num_ranks);
  });
}

absl::StatusOr<std::vector<HostPlace>> ParseHostPlaces(absl::string_view text, int num_ranks) {
  std::vector<HostPlace> places;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> sides = absl::StrSplit(part, '/');
    HostPlace each;
    if (sides.size() != 2 || !absl::SimpleAtoi(sides[0], &each.place) ||
        !absl::SimpleAtoi(sides[1], &each.num_ranks) || each.num_ranks < 1 ||
        each.num_ranks > kMostRanks || each.place < 0 || each.place >= each.num_ranks) {
      return absl::InvalidArgumentError(absl::StrCat("--host-places: \"", part,
                                                     "\" is not PLACE/RANKS, 0/1 to ",
                                                     kMostRanks - 1, "/", kMostRanks));
    }
    places.push_back(each);
  }
  if (std::ssize(places) != num_ranks) {
    return absl::InvalidArgumentError(absl::StrCat("--host-places has ", places.size(),
                                                   " places, the job ", num_ranks, " ranks"));
  }
  return places;
}

}  // namespace lockstep
