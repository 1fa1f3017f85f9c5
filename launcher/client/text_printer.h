// Prints several outputs that arrive at the same time, one after another: the first unfinished one
// streams, the rest wait in memory.
//
// With more than one output each gets a heading. Not thread-safe.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace lockstep {

class TextPrinter {
 public:
  // out must outlive the printer. for_terminal: control characters are made harmless.
  TextPrinter(std::FILE* out, std::vector<std::string> headings, bool for_terminal);

  void Append(size_t output, absl::string_view text);
  // Idempotent. fails: without a heading where there is no text, either.
  void Finish(size_t output, bool fails = false);

 private:
  void Open();
  void Write(absl::string_view text);

  struct Pending {
    std::string heading;
    std::string text = {};
    bool is_finished = false;
    bool fails = false;
  };
  std::FILE* out_;
  std::vector<Pending> outputs_;
  size_t current_ = 0;       // the one that streams
  bool is_open_ = false;     // it has its heading
  bool has_opened_ = false;  // any
  bool for_terminal_;
  bool at_line_start_ = true;
};

}  // namespace lockstep
