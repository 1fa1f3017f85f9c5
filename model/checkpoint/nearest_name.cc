#include "model/checkpoint/nearest_name.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/check.h"
#include "model/json/strict_json.h"

namespace lockstep {
namespace {

constexpr size_t kMaxNameBytes = 64;  // the distance is quadratic

// Wagner and Fischer 1974, one row at a time.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({replaced, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row.back();
}

// Of a name whose end was left out, too; among those as far, of the whole name.
std::pair<size_t, size_t> DistanceTo(const std::string& wanted, const std::string& name) {
  const std::string a = absl::AsciiStrToLower(wanted.substr(0, kMaxNameBytes));
  const std::string b = absl::AsciiStrToLower(name);
  return {EditDistance(a, b.substr(0, a.size())), EditDistance(a, b)};
}

}  // namespace

std::string NearestName(const std::string& wanted, const std::vector<std::string>& names) {
  LS_CHECK(!names.empty()) << "no names";
  return *std::min_element(names.begin(), names.end(),
                           [&](const std::string& a, const std::string& b) {
                             return DistanceTo(wanted, a) < DistanceTo(wanted, b);
                           });
}

absl::Status UnknownName(const std::string& what, const std::string& wanted,
                         const std::vector<std::string>& names) {
  const std::string nearest = NearestName(wanted, names);
  const bool is_near = DistanceTo(wanted, nearest).first <= (wanted.size() + 1) / 2;
  const std::string guess =
      is_near ? absl::StrCat("; did you mean ", nearest, "? Known: ") : "; known: ";
  return absl::NotFoundError(
      absl::StrCat(what, " ", Quoted(wanted), " is not known", guess, absl::StrJoin(names, ", ")));
}

}  // namespace lockstep
