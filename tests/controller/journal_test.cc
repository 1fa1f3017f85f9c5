#include "runtime/controller/journal.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/check.h"
#include "runtime/controller/journal_format.h"
#include "tests/support/read_file.h"
#include "tests/support/temp_directory.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const absl::Time kJournalStart = absl::FromUnixSeconds(1000);
constexpr absl::Duration kWindow = absl::Seconds(60);

v1::JournaledRequest RequestOf(const std::string& name, int num_tokens = 3) {
  v1::JournaledRequest request;
  request.set_accepted_at_ms(7);
  request.mutable_request()->set_request_id(name);
  for (int i = 0; i < num_tokens; ++i) {
    request.mutable_request()->mutable_token_ids()->add_ids(i);
  }
  return request;
}

class JournalTest : public ::testing::Test {
 protected:
  JournalTest() : path_((scratch_ / "journal").string()) {}

  absl::Status Open(absl::Time now = kJournalStart) {
    journal_.reset();
    options_.path = path_;
    options_.model_fingerprint = "model";
    options_.reattach_window = kWindow;
    absl::StatusOr<std::unique_ptr<Journal>> opened = Journal::Open(options_, now);
    if (opened.ok()) journal_ = *std::move(opened);
    return opened.status();
  }
  bool Has(const std::string& name, absl::Time now = kJournalStart) {
    return journal_->Find(name, now).has_value();
  }
  std::string Read() const { return testing::ReadFile(path_); }
  void Write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }

  const testing::TempDirectory scratch_;
  std::string path_;
  JournalOptions options_;
  std::unique_ptr<Journal> journal_;
};

TEST_F(JournalTest, WhatWasAcceptedAndNotEndedIsFoundAgain) {
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(journal_->Accept(RequestOf("a"), 1, kJournalStart));
  EXPECT_TRUE(journal_->Accept(RequestOf("b", 500), 2, kJournalStart));
  EXPECT_TRUE(journal_->Accept(RequestOf("c"), 3, kJournalStart));
  journal_->End("a", 1);
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(journal_->num_recovered(), 2);
  EXPECT_EQ(journal_->num_bytes_cut(), 0);
  EXPECT_FALSE(Has("a"));
  EXPECT_EQ(journal_->Find("b", kJournalStart)->SerializeAsString(),
            RequestOf("b", 500).SerializeAsString());
  EXPECT_TRUE(Has("c"));
}

TEST_F(JournalTest, TheFileIsItsOwnersAlone) {
  ASSERT_TRUE(Open().ok());
  struct stat info;
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(JournalTest, ALinkStaysOneToTheFile) {
  std::filesystem::create_symlink("target", path_);
  for (int i = 0; i < 2; ++i) {  // a new file, and one that is there
    ASSERT_TRUE(Open().ok());
    EXPECT_TRUE(journal_->Accept(RequestOf(absl::StrCat("a", i)), 1, kJournalStart));
    EXPECT_EQ(std::filesystem::read_symlink(path_), "target");
  }
  EXPECT_THAT(testing::ReadFile(scratch_ / "target"), AllOf(HasSubstr("a0"), HasSubstr("a1")));
}

// The crash that comes in the middle of a write.
TEST_F(JournalTest, CutAnywhereItHoldsThePrefix) {
  ASSERT_TRUE(Open().ok());
  const size_t empty_bytes = Read().size();
  std::vector<size_t> ends;  // of the records
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_TRUE(journal_->Accept(RequestOf(name), 1, kJournalStart));
    ends.push_back(Read().size());
  }
  const std::string whole = Read();
  for (size_t num_bytes = empty_bytes; num_bytes <= whole.size(); ++num_bytes) {
    journal_.reset();
    Write(whole.substr(0, num_bytes));
    ASSERT_TRUE(Open().ok()) << num_bytes;
    const auto complete =
        std::count_if(ends.begin(), ends.end(), [&](size_t end) { return end <= num_bytes; });
    ASSERT_EQ(journal_->num_recovered(), complete) << num_bytes;
    const size_t sound = complete == 0 ? empty_bytes : ends[complete - 1];
    ASSERT_EQ(journal_->num_bytes_cut(), static_cast<int64_t>(num_bytes - sound)) << num_bytes;
    ASSERT_TRUE(journal_->Accept(RequestOf("later"), 1, kJournalStart));
    ASSERT_TRUE(Open().ok());
    ASSERT_EQ(journal_->num_recovered(), complete + 1) << num_bytes;
  }
}

TEST_F(JournalTest, ADamagedByteEndsItThere) {
  ASSERT_TRUE(Open().ok());
  const size_t empty_bytes = Read().size();
  ASSERT_TRUE(journal_->Accept(RequestOf("a"), 1, kJournalStart));
  const size_t first_end = Read().size();
  ASSERT_TRUE(journal_->Accept(RequestOf("b"), 1, kJournalStart));
  const std::string whole = Read();
  for (size_t at = empty_bytes; at < whole.size(); ++at) {
    journal_.reset();
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    Write(damaged);
    ASSERT_TRUE(Open().ok()) << at;
    ASSERT_EQ(journal_->num_recovered(), at < first_end ? 0 : 1) << at;
  }
}

TEST_F(JournalTest, AHoleOfZerosEndsItToo) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(journal_->Accept(RequestOf("a"), 1, kJournalStart));
  journal_.reset();
  Write(Read() + std::string(4096, '\0'));
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(journal_->num_recovered(), 1);
  EXPECT_EQ(journal_->num_bytes_cut(), 4096);
}

TEST_F(JournalTest, WhatIsNoJournalIsRefusedAndLeftAlone) {
  Write("my only copy of something else");
  const absl::Status rubbish = Open();
  EXPECT_EQ(rubbish.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(rubbish.message()), AllOf(HasSubstr(path_), HasSubstr("not a journal")));
  EXPECT_EQ(Read(), "my only copy of something else");
  Write("");
  EXPECT_TRUE(Open().ok());
  path_ = (scratch_ / "absent/journal").string();
  EXPECT_EQ(Open().code(), absl::StatusCode::kUnavailable);
}

TEST_F(JournalTest, AnotherModelsIsRefusedWhileItHoldsRequests) {
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(journal_->Accept(RequestOf("a"), 1, kJournalStart));
  journal_.reset();
  options_.model_fingerprint = "another";
  const absl::Status refused = Journal::Open(options_, kJournalStart).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("another model"));

  ASSERT_TRUE(Open().ok());
  journal_->End("a", 0);
  journal_.reset();
  options_.model_fingerprint = "another";
  EXPECT_TRUE(Journal::Open(options_, kJournalStart).ok());  // nothing in it is of a model
  EXPECT_TRUE(Journal::Open(options_, kJournalStart).ok());
}

TEST_F(JournalTest, WhatFinishedKeepsNoOtherModelOut) {
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(journal_->Accept(RequestOf("a"), 1, kJournalStart));
  journal_->Finish("a", 1, kJournalStart);
  journal_.reset();
  options_.model_fingerprint = "another";
  const auto opened = Journal::Open(options_, kJournalStart);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ((*opened)->num_requests(), 0);
}

TEST_F(JournalTest, OneProcessHoldsIt) {
  ASSERT_TRUE(Open().ok());
  EXPECT_THAT(std::string(Journal::Open(options_, kJournalStart).status().message()),
              HasSubstr("in use"));
}

TEST_F(JournalTest, TheLaterOfTwoRequestsOfOneNameCounts) {
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(journal_->Accept(RequestOf("a", 3), 1, kJournalStart));
  EXPECT_TRUE(journal_->Accept(RequestOf("a", 9), 2, kJournalStart));
  journal_->End("a", 1);  // the first one's stream, late
  EXPECT_EQ(journal_->num_requests(), 1);
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(journal_->Find("a", kJournalStart)->request().token_ids().ids_size(), 9);
}

TEST_F(JournalTest, OfTwoOfOneNameTheFirstDoesNotComeBackForTheSecond) {
  options_.max_bytes = 1000;
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(journal_->Accept(RequestOf("a"), 1, kJournalStart));
  EXPECT_FALSE(journal_->Accept(RequestOf("a", 2000), 2, kJournalStart)) << "there is no room";
  EXPECT_FALSE(Has("a"));
  ASSERT_TRUE(Open().ok());
  EXPECT_FALSE(Has("a"));
}

TEST_F(JournalTest, ARequestWithoutAStreamIsForgottenAfterTheWindow) {
  ASSERT_TRUE(Open().ok());
  journal_->Accept(RequestOf("held"), 1, kJournalStart);
  journal_->Accept(RequestOf("left"), 2, kJournalStart);
  journal_->Accept(RequestOf("back"), 3, kJournalStart);
  journal_->Release("left", 2, kJournalStart);
  journal_->Release("back", 3, kJournalStart);
  EXPECT_TRUE(journal_->Hold("back", 4));
  journal_->Release("back", 3, kJournalStart);  // the old stream, late
  EXPECT_TRUE(Has("left", kJournalStart + kWindow - absl::Nanoseconds(1)));
  EXPECT_FALSE(Has("left", kJournalStart + kWindow));
  EXPECT_FALSE(journal_->Hold("left", 5));
  EXPECT_TRUE(Has("held", kJournalStart + 10 * kWindow));
  EXPECT_TRUE(Has("back", kJournalStart + 10 * kWindow));
  ASSERT_TRUE(Open(kJournalStart + 20 * kWindow).ok());  // nobody holds any after a restart
  EXPECT_EQ(journal_->num_recovered(), 2);
  EXPECT_FALSE(Has("held", kJournalStart + 21 * kWindow));
  ASSERT_TRUE(Open(kJournalStart + 21 * kWindow).ok());
  EXPECT_EQ(journal_->num_recovered(), 0);
}

TEST_F(JournalTest, WhatFinishedStaysForAMinuteAlsoOverARestart) {
  options_.max_requests = 3;
  ASSERT_TRUE(Open().ok());
  for (const char* name : {"a", "b", "c"}) {
    journal_->Accept(RequestOf(name), 1, kJournalStart);
    journal_->Finish(name, 1, kJournalStart);
  }
  EXPECT_TRUE(Has("b", kJournalStart + absl::Seconds(59)));
  EXPECT_TRUE(journal_->Hold("b", 2));
  EXPECT_TRUE(journal_->Accept(RequestOf("d"), 3, kJournalStart + absl::Seconds(59)));
  EXPECT_FALSE(Has("a")) << "it makes room";
  EXPECT_FALSE(Has("c", kJournalStart + absl::Seconds(60)));
  EXPECT_TRUE(Has("b", kJournalStart + absl::Seconds(60)));  // it runs again
  journal_->Accept(RequestOf("e"), 4, kJournalStart + absl::Seconds(60));
  journal_->Finish("e", 4, kJournalStart + absl::Seconds(60));
  options_.max_requests = 100;
  const absl::Time restart = kJournalStart + absl::Seconds(100);
  ASSERT_TRUE(Open(restart).ok());
  EXPECT_EQ(journal_->num_recovered(), 2) << "unfinished ones";
  ASSERT_TRUE(Open(restart).ok());  // of a file that was written anew
  EXPECT_EQ(journal_->num_recovered(), 2);
  EXPECT_EQ(journal_->num_requests(), 3);
  EXPECT_FALSE(Has("a", restart) || Has("c", restart));
  EXPECT_TRUE(Has("e", restart + absl::Seconds(59)));
  EXPECT_TRUE(Has("b", restart + absl::Seconds(59)));
  EXPECT_FALSE(Has("e", restart + absl::Seconds(60)));
}

TEST_F(JournalTest, WhenFullTheOnesLongestWithoutAStreamGo) {
  options_.max_requests = 3;
  ASSERT_TRUE(Open().ok());
  for (uint64_t i = 1; i <= 3; ++i) {
    EXPECT_TRUE(journal_->Accept(RequestOf(absl::StrCat("r", i)), i, kJournalStart));
  }
  EXPECT_FALSE(journal_->Accept(RequestOf("r4"), 4, kJournalStart));  // all have streams
  journal_->Release("r2", 2, kJournalStart + absl::Seconds(1));
  journal_->Release("r1", 1, kJournalStart + absl::Seconds(2));
  EXPECT_TRUE(journal_->Accept(RequestOf("r5"), 5, kJournalStart + absl::Seconds(3)));
  EXPECT_FALSE(Has("r2", kJournalStart + absl::Seconds(3)));
  EXPECT_TRUE(Has("r1", kJournalStart + absl::Seconds(3)));
}

TEST_F(JournalTest, WhenFullTheFinishedGoBeforeThoseThatWait) {
  options_.max_requests = 2;
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(journal_->Accept(RequestOf("waits"), 1, kJournalStart));
  EXPECT_TRUE(journal_->Accept(RequestOf("finished"), 2, kJournalStart));
  journal_->Release("waits", 1, kJournalStart);
  const absl::Time late = kJournalStart + options_.reattach_window - absl::Seconds(1);
  journal_->Finish("finished", 2, late);
  EXPECT_TRUE(journal_->Accept(RequestOf("new"), 3, late));
  EXPECT_TRUE(Has("waits", late));
  EXPECT_FALSE(Has("finished", late));
}

TEST_F(JournalTest, BytesAreBoundedLikeRequests) {
  options_.max_bytes = 1000;
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(journal_->Accept(RequestOf("a", 100), 1, kJournalStart));
  EXPECT_FALSE(journal_->Accept(RequestOf("huge", 2000), 2, kJournalStart));
  journal_->Release("a", 1, kJournalStart);
  EXPECT_TRUE(journal_->Accept(RequestOf("b", 520), 3, kJournalStart));
  EXPECT_FALSE(Has("a"));
}

// Files longer than that cannot be written.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t num_bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    LS_CHECK(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit now{.rlim_cur = num_bytes, .rlim_max = before_.rlim_max};
    LS_CHECK(setrlimit(RLIMIT_FSIZE, &now) == 0);
  }
  ~FileSizeLimit() { LS_CHECK(setrlimit(RLIMIT_FSIZE, &before_) == 0); }

 private:
  rlimit before_;
};

TEST_F(JournalTest, WhatHasEndedMakesRoomWhereTheDiskHasNone) {
  ASSERT_TRUE(Open().ok());
  const FileSizeLimit limit(10'000);
  for (int i = 0; i < 100; ++i) {
    const std::string name = absl::StrCat("r", i);
    ASSERT_TRUE(journal_->Accept(RequestOf(name, 1000), 1, kJournalStart)) << journal_->error();
    journal_->End(name, 1);
  }
  EXPECT_TRUE(journal_->error().ok());
}

// The room that finished ones take on a disk is others'.
TEST_F(JournalTest, WhatHasFinishedMakesRoomWhereTheDiskHasNone) {
  ASSERT_TRUE(Open().ok());
  const FileSizeLimit limit(10'000);
  for (int i = 0; i < 100; ++i) {
    const std::string name = absl::StrCat("r", i);
    ASSERT_TRUE(journal_->Accept(RequestOf(name, 1000), 1, kJournalStart)) << journal_->error();
    journal_->Finish(name, 1, kJournalStart);
  }
  EXPECT_TRUE(journal_->error().ok());
}

TEST_F(JournalTest, WhereNothingLivesNoRoomIsNeededForASuccessor) {
  ASSERT_TRUE(Open().ok());
  const FileSizeLimit limit(10'000);
  int count = 0;
  const auto name = [](int i) { return absl::StrCat("r", i); };
  while (journal_->Accept(RequestOf(name(count), 1000), 1, kJournalStart)) ++count;
  ASSERT_GE(count, 3);
  std::filesystem::create_directories(path_ + ".new/in the way");  // as where the disk is full
  journal_->End(name(0), 1);
  EXPECT_FALSE(journal_->Accept(RequestOf("more", 1000), 1, kJournalStart)) << "others live";
  for (int i = 1; i < count; ++i) journal_->End(name(i), 1);
  EXPECT_FALSE(journal_->Accept(RequestOf("too large", 20'000), 1, kJournalStart));
  EXPECT_TRUE(journal_->Accept(RequestOf("more", 1000), 1, kJournalStart)) << journal_->error();
  std::filesystem::remove_all(path_ + ".new");
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(journal_->num_recovered(), 1);
}

TEST_F(JournalTest, WriteThatFailsIsToldOnceAndForgottenWhenOneSucceeds) {
  std::vector<std::string> told;
  options_.on_error = [&](const absl::Status& error) {
    told.push_back(std::string(error.message()));
  };
  ASSERT_TRUE(Open().ok());
  {
    const FileSizeLimit limit(1'000);
    for (int i = 0; i < 3; ++i) {
      EXPECT_FALSE(journal_->Accept(RequestOf("long", 1000), 1, kJournalStart));
    }
    EXPECT_THAT(std::string(journal_->error().message()),
                AllOf(HasSubstr(path_), HasSubstr("cannot write: File too large")));
  }
  EXPECT_EQ(told.size(), 1u);
  EXPECT_TRUE(journal_->Accept(RequestOf("long", 1000), 1, kJournalStart));
  EXPECT_TRUE(journal_->error().ok());
}

// The word that the first of two has ended is short, and finds room.
TEST_F(JournalTest, ARecordThatFitsDoesNotHideOneThatDidNot) {
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(journal_->Accept(RequestOf("a"), 1, kJournalStart));
  const FileSizeLimit limit(1'000);
  EXPECT_FALSE(journal_->Accept(RequestOf("a", 1000), 2, kJournalStart));
  EXPECT_THAT(std::string(journal_->error().message()), HasSubstr("File too large"));
}

TEST_F(JournalTest, WhereItCannotBeReplacedRecordsAreWrittenAsLongAsItCanBeOpenedAgain) {
  options_.max_bytes = 1 << 20;
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(journal_->Accept(RequestOf("lives"), 1, kJournalStart));
  for (const char* suffix : {".new", ".next"}) {
    std::filesystem::create_directories(path_ + suffix + "/in the way");
  }
  const auto accept = [&](int i) {
    const std::string name = absl::StrCat("r", i);
    const bool accepted = journal_->Accept(RequestOf(name, 1000), 2, kJournalStart);
    EXPECT_EQ(journal_->error().ok(), accepted);
    journal_->End(name, 2);
    return accepted;
  };
  int i = 0;
  for (; i < 3000; ++i) ASSERT_TRUE(accept(i)) << journal_->error();
  while (accept(++i)) ASSERT_LT(i, 10'000);
  EXPECT_THAT(std::string(journal_->error().message()), HasSubstr("cannot create its successor"));
  std::filesystem::remove_all(path_ + ".new");
  std::filesystem::remove_all(path_ + ".next");
  EXPECT_TRUE(accept(++i));
  EXPECT_LT(journal_->num_file_bytes(), 1 << 20);
  ASSERT_TRUE(Open().ok());
}

TEST_F(JournalTest, TheFileDoesNotGrowWithWhatHasEnded) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(journal_->Accept(RequestOf("stays"), 1, kJournalStart));
  int64_t num_bytes = 0;
  const auto come_and_go = [&](int i) {
    const std::string name = absl::StrCat("r", i);
    const int64_t before = journal_->num_file_bytes();
    ASSERT_TRUE(journal_->Accept(RequestOf(name, 1000), 2, kJournalStart));
    num_bytes += std::max<int64_t>(0, journal_->num_file_bytes() - before);
    journal_->End(name, 2);
  };
  int i = 0;
  while (num_bytes < 5 << 20) come_and_go(i++);
  // It is made short by another thread, in its own time.
  while (journal_->num_file_bytes() > 3 << 20) come_and_go(i++);
  EXPECT_TRUE(journal_->error().ok());
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(journal_->num_recovered(), 1);
  EXPECT_EQ(journal_->num_file_bytes(), static_cast<int64_t>(Read().size()));
}

TEST_F(JournalTest, WhatComesWhileASuccessorIsWrittenIsInItToo) {
  options_.max_requests = 100'000;
  ASSERT_TRUE(Open().ok());
  std::set<std::string> alive;
  int num_replaced = 0;
  int64_t num_bytes = 0;
  for (int i = 0; num_replaced < 5; ++i) {
    ASSERT_LT(i, 100'000);
    const std::string name = absl::StrCat("r", i);
    ASSERT_TRUE(journal_->Accept(RequestOf(name, 300), 2, kJournalStart)) << journal_->error();
    if (i % 50 == 0) {
      alive.insert(name);
    } else {
      journal_->End(name, 2);
    }
    num_replaced += journal_->num_file_bytes() < num_bytes ? 1 : 0;
    num_bytes = journal_->num_file_bytes();
  }
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(journal_->num_recovered(), std::ssize(alive));
  for (const std::string& name : alive) EXPECT_TRUE(Has(name)) << name;
}

}  // namespace
}  // namespace lockstep
