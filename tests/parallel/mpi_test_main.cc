#include "tests/parallel/mpi_test_main.h"

#include <cstdio>

#include "gtest/gtest.h"

namespace lockstep::testing {
namespace {

const MpiSession* session = nullptr;

}  // namespace

const MpiSession& TestSession() { return *session; }

namespace {

int RunTests(int argc, char** argv) {
  const auto started = MpiSession::Start(&argc, &argv);
  if (!started.ok()) {
    std::fprintf(stderr, "%s\n", started.status().ToString().c_str());
    return 1;
  }
  session = &*started;
  ::testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  // A failing rank takes the job with it, else its peers would wait in a test that it has left.
  if (result != 0) MpiSession::AbortJob(result);
  return 0;
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) { return lockstep::testing::RunTests(argc, argv); }
