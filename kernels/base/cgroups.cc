#include "kernels/base/cgroups.h"

#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

void AddUpwards(const fs::path& root, fs::path group, bool is_version_1,
                std::vector<Cgroup>& found) {
  for (; group.has_relative_path(); group = group.parent_path()) {
    found.push_back({root / group.relative_path(), is_version_1});
  }
  found.push_back({root, is_version_1});
}

}  // namespace

// A line of /proc/self/cgroup is HIERARCHY:CONTROLLERS:PATH; version 2 has no controllers.
std::vector<Cgroup> CgroupsOf(const char* controller, const SystemFiles& files) {
  std::vector<Cgroup> found;
  std::ifstream groups(files.proc / "self" / "cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = absl::StrCat(",", line.substr(first + 1, second - first));
    const fs::path group = line.substr(second + 1);
    if (controllers == ",:") {
      AddUpwards(files.cgroups, group, /*is_version_1=*/false, found);
    } else if (absl::StrContains(controllers, absl::StrCat(",", controller, ",")) ||
               absl::StrContains(controllers, absl::StrCat(",", controller, ":"))) {
      AddUpwards(files.cgroups / controller, group, /*is_version_1=*/true, found);
    }
  }
  return found;
}

}  // namespace lockstep
