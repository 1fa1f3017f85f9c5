#include "launcher/job/kept_program.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/accelerator.h"
#include "kernels/base/this_program.h"
#include "tests/support/temp_directory.h"

namespace lockstep {
namespace {

using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

std::string Contents(const std::filesystem::path& path) {
  std::stringstream read;
  read << std::ifstream(path).rdbuf();
  return read.str();
}

// Sets a variable of the environment, and takes that back.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    const char* old = std::getenv(name);
    if (old != nullptr) old_ = old;
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() {
    if (old_.empty()) {
      ::unsetenv(name_);
    } else {
      ::setenv(name_, old_.c_str(), 1);
    }
  }

 private:
  const char* name_;
  std::string old_;
};

class KeptProgramTest : public ::testing::Test {
 protected:
  // Under a name of its own, as another version is installed.
  void Replace(const std::filesystem::path& file) {
    std::filesystem::rename(scratch_.Write("new", "new"), file);
  }
  const testing::TempDirectory scratch_;
  const testing::TempDirectory links_;
};

TEST_F(KeptProgramTest, IsItsOwnFileWhileThatIsThere) {
  const auto kept = KeptProgram::Keep(links_.path());
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->program().Path(), *ThisProgram());
}

TEST_F(KeptProgramTest, AReplacedFileIsReachedByItsLink) {
  const std::filesystem::path file = scratch_.Write("file", "old");
  const Fd used(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  const auto kept =
      KeptFile::Keep(file, absl::StrCat("/proc/", ::getpid(), "/fd/", used.get()), links_ / "file");
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->Path(), file);
  Replace(file);
  EXPECT_EQ(kept->Path(), links_ / "file");
  EXPECT_EQ(Contents(kept->Path()), "old");
  std::filesystem::remove(file);
  EXPECT_EQ(Contents(kept->Path()), "old");
}

TEST_F(KeptProgramTest, RanksAreToldOfAReplacedPluginAlone) {
  const std::filesystem::path file = scratch_.Write("plugin.so", "old");
  const Variable plugin(kPluginVariable, file.string());
  const Variable libraries("LD_LIBRARY_PATH", "/opt/lib");
  const auto kept = KeptProgram::Keep(links_.path());
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_THAT(kept->PluginVariables(), IsEmpty());
  Replace(file);
  EXPECT_THAT(kept->PluginVariables(),
              UnorderedElementsAre(
                  Pair(kPluginVariable, (links_ / "plugin.so").string()),
                  Pair("LD_LIBRARY_PATH", absl::StrCat(scratch_.path().string(), ":/opt/lib"))));
  EXPECT_EQ(Contents(links_ / "plugin.so"), "old");
}

TEST_F(KeptProgramTest, AMissingPluginIsNoError) {
  const Variable plugin(kPluginVariable, (scratch_ / "nowhere.so").string());
  const auto kept = KeptProgram::Keep(links_.path());
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_THAT(kept->PluginVariables(), IsEmpty());
}

TEST_F(KeptProgramTest, ALinkThatCannotBeMadeIsNamed) {
  const auto kept = KeptProgram::Keep(scratch_ / "nowhere");
  ASSERT_FALSE(kept.ok());
  EXPECT_THAT(std::string(kept.status().message()), ::testing::HasSubstr("nowhere"));
}

}  // namespace
}  // namespace lockstep
