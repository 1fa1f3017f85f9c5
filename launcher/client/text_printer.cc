#include "launcher/client/text_printer.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "launcher/cli/values.h"

namespace lockstep {

TextPrinter::TextPrinter(std::FILE* out, std::vector<std::string> headings, bool for_terminal)
    : out_(out), for_terminal_(for_terminal) {
  for (std::string& heading : headings) outputs_.push_back({std::move(heading), "", false});
  if (!outputs_.empty()) Open(0);
}

void TextPrinter::Open(size_t output) {
  if (outputs_.size() == 1) return;
  Write(absl::StrCat(output == 0 ? "" : "\n", "==> ", outputs_[output].heading, " <==\n"));
}

void TextPrinter::Append(size_t output, absl::string_view text) {
  LS_CHECK_LT(output, outputs_.size());
  if (output == current_) {
    Write(text);
  } else {
    outputs_[output].text.append(text.data(), text.size());
  }
}

void TextPrinter::Finish(size_t output) {
  LS_CHECK_LT(output, outputs_.size());
  outputs_[output].is_finished = true;
  while (current_ < outputs_.size() && outputs_[current_].is_finished) {
    if (!at_line_start_) Write("\n");
    ++current_;
    if (current_ == outputs_.size()) break;
    Open(current_);
    Write(outputs_[current_].text);
    outputs_[current_].text.clear();
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
