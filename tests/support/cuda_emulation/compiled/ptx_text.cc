#include "tests/support/cuda_emulation/compiled/ptx_text.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace lockstep::cuda_emulation::ptx {

namespace {

std::string Trimmed(absl::string_view text) {
  return std::string(absl::StripAsciiWhitespace(text));
}

// Spaces in place of comments, so that lines keep their numbers.
std::string WithoutComments(absl::string_view text) {
  std::string plain(text);
  for (size_t i = 0; i + 1 < plain.size(); ++i) {
    if (plain[i] != '/' || (plain[i + 1] != '/' && plain[i + 1] != '*')) continue;
    const char* const end = plain[i + 1] == '/' ? "\n" : "*/";
    const size_t found = std::min(plain.find(end, i + 2), plain.size());
    const size_t past = plain[i + 1] == '/' ? found : std::min(found + 2, plain.size());
    for (; i < past; ++i) {
      if (plain[i] != '\n') plain[i] = ' ';
    }
    --i;
  }
  return plain;
}

bool IsWordEnd(char c) { return absl::ascii_isspace(c) || c == '(' || c == '{' || c == ';'; }

bool IsEmpty(const Statement& statement) {
  return !statement.opens_scope && !statement.closes_scope && statement.label.empty() &&
         statement.directive.empty() && statement.opcode.empty();
}

class Parser {
 public:
  Parser(std::string file, absl::string_view text)
      : module_{std::move(file), {}, {}}, text_(WithoutComments(text)) {}

  absl::StatusOr<ModuleText> Parse() {
    while (SkipSpace()) {
      if (absl::Status status = TopLevel(); !status.ok()) return status;
    }
    return std::move(module_);
  }

 private:
  absl::Status Bad(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(module_.file, ":", line_, ": ", what));
  }

  // False at the end.
  bool SkipSpace() {
    while (at_ < text_.size() && absl::ascii_isspace(text_[at_])) Next();
    return at_ < text_.size();
  }
  char Next() {
    if (text_[at_] == '\n') ++line_;
    return text_[at_++];
  }
  std::string Word() {
    std::string word;
    while (at_ < text_.size() && !IsWordEnd(text_[at_])) word += Next();
    return word;
  }
  // What stands before `end`, which is passed over.
  std::string Until(char end) {
    std::string passed;
    while (at_ < text_.size() && text_[at_] != end) passed += Next();
    if (at_ < text_.size()) Next();
    return passed;
  }

  absl::Status TopLevel() {
    const std::string word = Word();
    if (word == ".version" || word == ".target" || word == ".address_size" || word == ".file") {
      Until('\n');
      return absl::OkStatus();
    }
    if (word == ".visible" || word == ".weak" || word == ".extern") return absl::OkStatus();
    if (word == ".shared") return AddShared(Until(';'));
    if (word == ".entry") return AddKernel();
    return Bad(absl::StrCat("'", word, "' is not known here"));
  }

  absl::Status AddShared(const std::string& declaration) {
    absl::StatusOr<Variable> variable = ParseVariable(declaration);
    if (!variable.ok()) return Bad(variable.status().message());
    module_.shared.push_back(*std::move(variable));
    return absl::OkStatus();
  }

  absl::Status AddKernel() {
    SkipSpace();
    KernelText kernel;
    kernel.name = Trimmed(Until('('));
    for (const std::string& declaration : SplitOperands(Until(')'))) {
      absl::StatusOr<Variable> variable = ParseVariable(absl::StripPrefix(declaration, ".param"));
      if (!variable.ok()) return Bad(variable.status().message());
      kernel.parameters.push_back(*std::move(variable));
    }
    Until('{');  // directives about its launch
    int depth = 1;
    while (depth > 0) {
      if (!SkipSpace()) return Bad("a kernel without an end");
      absl::StatusOr<Statement> statement = Next(depth);
      if (!statement.ok()) return statement.status();
      depth += statement->opens_scope ? 1 : statement->closes_scope ? -1 : 0;
      if (IsEmpty(*statement)) continue;
      kernel.body.push_back(*std::move(statement));
    }
    kernel.body.pop_back();  // the kernel's own end
    module_.kernels.push_back(std::move(kernel));
    return absl::OkStatus();
  }

  absl::StatusOr<Statement> Next(int depth) {
    Statement statement;
    statement.line = line_;
    if (text_[at_] == '{' || text_[at_] == '}') {
      (Next() == '{' ? statement.opens_scope : statement.closes_scope) = true;
      return statement;
    }
    if (depth > 8) return Bad("scopes deeper than expected");
    if (absl::StartsWith(absl::string_view(text_).substr(at_), ".loc\t")) {
      Until('\n');
      statement.directive = ".loc";
      return statement;
    }
    const size_t end = text_.find_first_of(":;. \t\n", at_);
    if (end != std::string::npos && text_[end] == ':') {
      statement.label = Trimmed(Until(':'));
      return statement;
    }
    return InstructionOf(Trimmed(Until(';')), std::move(statement));
  }

  absl::StatusOr<Statement> InstructionOf(std::string text, Statement statement) const {
    if (absl::StartsWith(text, ".")) {
      statement.directive = std::move(text);
      return statement;
    }
    absl::string_view rest = text;
    if (absl::ConsumePrefix(&rest, "@")) {
      statement.guard_is_negated = absl::ConsumePrefix(&rest, "!");
      const size_t end = rest.find_first_of(" \t");
      if (end == absl::string_view::npos) return Bad("a guard without an instruction");
      statement.guard = std::string(rest.substr(0, end));
      rest = absl::StripLeadingAsciiWhitespace(rest.substr(end));
    }
    const size_t end = std::min(rest.find_first_of(" \t\n"), rest.size());
    statement.opcode = std::string(rest.substr(0, end));
    statement.operands = SplitOperands(rest.substr(end));
    return statement;
  }

  ModuleText module_;
  std::string text_;
  size_t at_ = 0;
  unsigned line_ = 1;
};

int64_t BytesOfType(absl::string_view type) {
  static constexpr std::pair<absl::string_view, int64_t> kTypes[] = {
      {".b8", 1},  {".u8", 1},  {".s8", 1},  {".b16", 2}, {".u16", 2}, {".s16", 2}, {".b32", 4},
      {".u32", 4}, {".s32", 4}, {".f32", 4}, {".b64", 8}, {".u64", 8}, {".s64", 8}, {".f64", 8}};
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](const auto& known) { return known.first == type; });
  return found == std::end(kTypes) ? 0 : found->second;
}

}  // namespace

absl::StatusOr<ModuleText> ParseModule(std::string file, absl::string_view text) {
  return Parser(std::move(file), text).Parse();
}

std::vector<std::string> SplitOperands(absl::string_view text) {
  std::vector<std::string> parts;
  std::string part;
  int depth = 0;
  for (const char c : text) {
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (c == ',' && depth == 0) {
      parts.push_back(Trimmed(std::exchange(part, "")));
    } else {
      part += c;
    }
  }
  if (std::string last = Trimmed(part); !last.empty()) parts.push_back(std::move(last));
  return parts;
}

absl::StatusOr<Variable> ParseVariable(absl::string_view text) {
  const std::vector<std::string> words =
      absl::StrSplit(text, absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
  Variable variable;
  int64_t alignment = 0;
  int64_t element_bytes = 0;
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == ".align") {
      if (!absl::SimpleAtoi(words[++i], &alignment)) alignment = -1;
    } else if (element_bytes == 0) {
      element_bytes = BytesOfType(words[i]);
    }
  }
  if (element_bytes == 0 || alignment < 0) {
    return absl::InvalidArgumentError(absl::StrCat("no variable: '", text, "'"));
  }
  variable.alignment = std::max(alignment, element_bytes);
  const std::vector<std::string> parts = absl::StrSplit(words.back(), absl::ByAnyChar("[]"));
  variable.name = parts[0];
  int64_t count = 1;
  if (parts.size() > 1 && parts[1].empty()) {
    variable.is_dynamic = true;
    count = 0;
  } else if (parts.size() > 1 && (!absl::SimpleAtoi(parts[1], &count) || count < 0)) {
    return absl::InvalidArgumentError(absl::StrCat("no number of elements: '", text, "'"));
  }
  variable.bytes = count * element_bytes;
  return variable;
}

}  // namespace lockstep::cuda_emulation::ptx
