#include "launcher/base/background_writer.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/fd.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class BackgroundWriterTest : public ::testing::Test {
 protected:
  BackgroundWriterTest() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read_ = Fd(ends[0]);
    write_ = Fd(ends[1]);
    old_ = ::signal(SIGPIPE, SIG_IGN);
  }
  ~BackgroundWriterTest() override { ::signal(SIGPIPE, old_); }

  std::function<void(const std::string&)> Listener() {
    return [this](const std::string& why) {
      absl::MutexLock lock(&mutex_);
      losses_.push_back(why);
    };
  }
  std::vector<std::string> Losses() {
    absl::MutexLock lock(&mutex_);
    return losses_;
  }
  std::string Read(size_t num_bytes) {
    std::string text;
    char buffer[1 << 16];
    while (text.size() < num_bytes) {
      const ssize_t count = ::read(read_.get(), buffer, sizeof(buffer));
      if (count <= 0) break;
      text.append(buffer, static_cast<size_t>(count));
    }
    return text;
  }

  Fd read_, write_;
  sighandler_t old_;
  absl::Mutex mutex_;
  std::vector<std::string> losses_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(BackgroundWriterTest, WritesInOrder) {
  BackgroundWriter writer(write_.get(), Listener());
  std::string all;
  for (int i = 0; i < 1000; ++i) {
    writer.Write(absl::StrCat(i, "\n"));
    absl::StrAppend(&all, i, "\n");
  }
  writer.Flush();
  EXPECT_EQ(Read(all.size()), all);
  EXPECT_THAT(Losses(), IsEmpty());
}

// A whole test's patience passes where Write waits for the reader.
TEST_F(BackgroundWriterTest, WhoDoesNotReadHoldsNobodyUpAndIsToldWhatIsLost) {
  const std::string line(1000, 'x');
  const size_t num_lines = 3 * BackgroundWriter::kMostWaitingBytes / line.size();
  BackgroundWriter writer(write_.get(), Listener());
  for (size_t i = 0; i < num_lines; ++i) writer.Write(line);
  writer.Flush();  // in vain
  EXPECT_THAT(Losses(), IsEmpty());
  const size_t least = BackgroundWriter::kMostWaitingBytes - line.size();
  EXPECT_GE(Read(least).size(), least);
  std::string rest;
  while (rest.find("the next\n") == std::string::npos) {
    writer.Write("the next\n");  // until there is room again
    rest += Read(1);
  }
  writer.Flush();
  ASSERT_FALSE(Losses().empty());
  EXPECT_THAT(Losses().front(), HasSubstr("lines are lost"));
}

TEST_F(BackgroundWriterTest, AReaderThatIsGoneIsToldOfOnce) {
  read_.Close();
  BackgroundWriter writer(write_.get(), Listener());
  for (int i = 0; i < 3; ++i) {
    writer.Write("a");
    writer.Flush();
  }
  EXPECT_THAT(Losses(), ElementsAre(HasSubstr("its reader is gone")));
}

TEST_F(BackgroundWriterTest, WhatADiskHasNoRoomForIsLost) {
  const Fd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  BackgroundWriter writer(full.get(), Listener());
  for (int i = 0; i < 3; ++i) {
    writer.Write("a");
    writer.Flush();
  }
  EXPECT_THAT(Losses(), ElementsAre("lines are lost: No space left on device"));
}

TEST_F(BackgroundWriterTest, EndsWhileNobodyReads) {
  {
    BackgroundWriter writer(write_.get(), Listener());
    writer.Write(std::string(BackgroundWriter::kMostWaitingBytes, 'x'));
  }
  // Its thread goes on until somebody does.
  EXPECT_EQ(Read(BackgroundWriter::kMostWaitingBytes).size(), BackgroundWriter::kMostWaitingBytes);
}

}  // namespace
}  // namespace lockstep
