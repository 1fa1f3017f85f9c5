// Invariant checks that stay in release builds.
//
// CHECK is for broken invariants of our own (a bug); it prints the condition, the place and the
// streamed message, then aborts. Outside input (files, flags, requests, peers) is never CHECKed: it
// gets absl::Status. absl 20220623 has no absl/log, hence these few lines.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

namespace lockstep {

class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition) {
    message_ << file << ':' << line << ": CHECK failed: " << condition << ' ';
  }
  CheckFailure(const CheckFailure&) = delete;
  CheckFailure& operator=(const CheckFailure&) = delete;
  [[noreturn]] ~CheckFailure() {
    std::fprintf(stderr, "%s\n", message_.str().c_str());
    std::fflush(stderr);
    std::abort();
  }
  std::ostream& stream() { return message_; }

 private:
  std::ostringstream message_;
};

}  // namespace lockstep

#define LS_CHECK(condition) \
  while (!(condition)) ::lockstep::CheckFailure(__FILE__, __LINE__, #condition).stream()
#define LS_CHECK_OP(a, op, b)                                              \
  while (!((a)op(b)))                                                      \
  ::lockstep::CheckFailure(__FILE__, __LINE__, #a " " #op " " #b).stream() \
      << '(' << (a) << " vs " << (b) << ") "
#define LS_CHECK_EQ(a, b) LS_CHECK_OP(a, ==, b)
#define LS_CHECK_LT(a, b) LS_CHECK_OP(a, <, b)
#define LS_CHECK_LE(a, b) LS_CHECK_OP(a, <=, b)
#define LS_CHECK_GT(a, b) LS_CHECK_OP(a, >, b)
#define LS_CHECK_GE(a, b) LS_CHECK_OP(a, >=, b)
