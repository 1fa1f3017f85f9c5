#include "launcher/client/text_printer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "launcher/cli/values.h"

namespace lockstep {

TextPrinter::TextPrinter(std::FILE* out, std::vector<std::string> headings, bool for_terminal)
    : out_(out), for_terminal_(for_terminal) {
  for (std::string& heading : headings) outputs_.push_back({.heading = std::move(heading)});
}

void TextPrinter::Open() {
  if (outputs_.size() == 1 || std::exchange(is_open_, true)) return;
  const char* gap = std::exchange(has_opened_, true) ? "\n" : "";
  Write(absl::StrCat(gap, "==> ", outputs_[current_].heading, " <==\n"));
}

void TextPrinter::Append(size_t output, absl::string_view text) {
  LS_CHECK_LT(output, outputs_.size());
  if (text.empty()) return;
  if (output == current_) {
    Open();
    Write(text);
  } else {
    outputs_[output].text.append(text.data(), text.size());
  }
}

void TextPrinter::Finish(size_t output, bool fails) {
  LS_CHECK_LT(output, outputs_.size());
  if (!std::exchange(outputs_[output].is_finished, true)) outputs_[output].fails = fails;
  while (current_ < outputs_.size() && outputs_[current_].is_finished) {
    if (!outputs_[current_].fails) Open();
    if (!at_line_start_) Write("\n");
    ++current_;
    is_open_ = false;
    if (current_ == outputs_.size()) break;
    const std::string waiting = std::exchange(outputs_[current_].text, "");
    Append(current_, waiting);
  }
}

void TextPrinter::Write(absl::string_view text) {
  if (text.empty()) return;
  const std::string shown = for_terminal_ ? TerminalText(text) : std::string(text);
  std::fwrite(shown.data(), 1, shown.size(), out_);
  std::fflush(out_);
  at_line_start_ = shown.back() == '\n';
}

}  // namespace lockstep
