// Prompts as the served model has them: their tokens, their text, its chat template.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "launcher/client/connection.h"
#include "launcher/client/prompts.h"

namespace lockstep {

// Gives those of token ids the text that they stand for. Errors: what the server answers.
absl::Status DetokenizePrompts(const Connection& connection, std::vector<Prompt>& prompts);

// Gives each prompt the token ids of a conversation in which a user says its text, and the
// assistant is to answer, perhaps after a thought; system: what is said to it before, empty =
// nothing. Markers in either are text. INVALID_ARGUMENT for a prompt of token ids,
// FAILED_PRECONDITION for a model without a chat template; ServedChatTemplate's and the server's.
absl::Status WriteAsChats(const Connection& connection, const std::string& system,
                          std::vector<Prompt>& prompts);

}  // namespace lockstep
