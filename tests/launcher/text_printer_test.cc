#include "launcher/client/text_printer.h"

#include <cstdio>
#include <cstdlib>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

class TextPrinterTest : public ::testing::Test {
 protected:
  ~TextPrinterTest() override {
    std::fclose(out_);
    std::free(buffer_);
  }
  std::string Printed() {
    std::fflush(out_);
    return std::string(buffer_, size_);
  }
  char* buffer_ = nullptr;
  size_t size_ = 0;
  std::FILE* out_ = ::open_memstream(&buffer_, &size_);
};

TEST_F(TextPrinterTest, OneOutputStreamsWithoutHeadingAndEndsItsLine) {
  TextPrinter printer(out_, {"unused"}, false);
  printer.Append(0, "Once ");
  EXPECT_EQ(Printed(), "Once ");
  printer.Append(0, "upon");
  printer.Finish(0);
  printer.Finish(0);
  EXPECT_EQ(Printed(), "Once upon\n");
}

TEST_F(TextPrinterTest, LaterOutputsWaitForEarlierOnes) {
  TextPrinter printer(out_, {"a", "b", "c"}, false);
  printer.Append(1, "B1");
  printer.Append(0, "A1");
  EXPECT_EQ(Printed(), "==> a <==\nA1");
  printer.Finish(1);
  printer.Append(2, "C1");
  printer.Finish(0);
  EXPECT_EQ(Printed(), "==> a <==\nA1\n\n==> b <==\nB1\n\n==> c <==\nC1");
  printer.Append(2, "C2\n");
  printer.Finish(2);
  EXPECT_EQ(Printed(), "==> a <==\nA1\n\n==> b <==\nB1\n\n==> c <==\nC1C2\n");
}

TEST_F(TextPrinterTest, WhatIsRefusedHasNoHeading) {
  TextPrinter printer(out_, {"a", "b", "c", "d"}, false);
  printer.Finish(0, /*fails=*/true);
  printer.Append(1, "B");
  printer.Finish(1, /*fails=*/true);
  printer.Finish(2);
  printer.Finish(3, /*fails=*/true);
  EXPECT_EQ(Printed(), "==> b <==\nB\n\n==> c <==\n");
}

}  // namespace
}  // namespace lockstep
