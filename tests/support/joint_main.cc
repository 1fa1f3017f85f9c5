// main() of the tests of several files (LOCKSTEP_UNITY): $LOCKSTEP_TEST_FILES, colon separated,
// names the files whose tests run, of those that GoogleTest's own flags choose; without it all run.
// A file named that has no test is an error. Of their tests $LOCKSTEP_TESTS_WITHOUT, patterns as
// GoogleTest's, are left out.
#include <cstdlib>
#include <iostream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::testing {
namespace {

std::string FileName(std::string_view path) {
  const size_t slash = path.rfind('/');
  return std::string(slash == std::string_view::npos ? path : path.substr(slash + 1));
}

// Takes the other files' tests out of GoogleTest's filter. False where a wanted file has none.
bool ChooseFiles(std::set<std::string> wanted) {
  const std::set<std::string> chosen = wanted;
  const char* without = std::getenv("LOCKSTEP_TESTS_WITHOUT");
  std::string others = without == nullptr ? "" : without;
  const ::testing::UnitTest& program = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < program.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *program.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(t);
      const std::string file = FileName(test.file());
      wanted.erase(file);
      if (chosen.contains(file)) continue;
      absl::StrAppend(&others, others.empty() ? "" : ":", suite.name(), ".", test.name());
    }
  }
  for (const std::string& file : wanted)
    std::cerr << "no test of this program is in " << file << "\n";
  std::string filter = GTEST_FLAG_GET(filter);
  if (!others.empty()) absl::StrAppend(&filter, absl::StrContains(filter, '-') ? ":" : "-", others);
  GTEST_FLAG_SET(filter, filter);
  return wanted.empty();
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  if (const char* files = std::getenv("LOCKSTEP_TEST_FILES"); files != nullptr) {
    if (!lockstep::testing::ChooseFiles(absl::StrSplit(files, ':'))) return 1;
  }
  return RUN_ALL_TESTS();
}
