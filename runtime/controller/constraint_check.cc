#include "runtime/controller/constraint_check.h"

#include <bitset>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/grammar/constraint.h"

namespace lockstep {
namespace {

const char* NameOf(OutputConstraint::Kind kind) {
  switch (kind) {
    case OutputConstraint::Kind::kNone:
      break;
    case OutputConstraint::Kind::kJsonSchema:
      return "json_schema";
    case OutputConstraint::Kind::kRegex:
      return "regex";
    case OutputConstraint::Kind::kChoices:
      return "choices";
    case OutputConstraint::Kind::kToolCalls:
      return "tool_calls";
  }
  return "kind";
}

// Of UTF-8, but for control characters that no text needs.
bool IsByteOfTexts(int byte) {
  const bool is_text =
      byte == '\t' || byte == '\n' || byte == '\r' || (byte >= 0x20 && byte < 0x7F);
  return is_text || (byte >= 0x80 && byte <= 0xF4 && byte != 0xC0 && byte != 0xC1);
}

// With a token for each byte whatever a grammar allows can be written.
std::string ProblemOf(const Tokenizer* tokenizer, bool has_eos) {
  if (tokenizer == nullptr) return "this model has no tokenizer.json, so no texts to constrain";
  if (!has_eos) return "this model has no end-of-text token to end a constrained text with";
  std::bitset<256> has_token;
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    const std::string bytes = tokenizer->IsSpecial(id) ? "" : tokenizer->TokenBytes(id);
    if (bytes.size() == 1) has_token.set(static_cast<unsigned char>(bytes[0]));
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (IsByteOfTexts(byte) && !has_token[static_cast<size_t>(byte)]) {
      return absl::StrFormat(
          "this model's vocabulary has no token for byte 0x%02x alone, so some texts cannot be "
          "written",
          byte);
    }
  }
  return "";
}

}  // namespace

ConstraintCheck::ConstraintCheck(const Tokenizer* tokenizer, bool has_eos)
    : problem_(ProblemOf(tokenizer, has_eos)) {}

absl::Status ConstraintCheck::Check(const OutputConstraint& constraint) const {
  if (constraint.kind == OutputConstraint::Kind::kNone) return absl::OkStatus();
  if (!problem_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("constraint: ", problem_));
  }
  const absl::Status compiled = grammar::CompileConstraint(constraint).status();
  if (compiled.ok()) return compiled;
  return absl::InvalidArgumentError(
      absl::StrCat("constraint.", NameOf(constraint.kind), ": ", compiled.message()));
}

}  // namespace lockstep
