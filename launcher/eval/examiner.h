// Asks a served model questions, several at a time, and counts the right replies.
//
// One thread calls Run; gRPC's threads report through a mailbox. Replies are counted in the order
// of the questions, so that equal replies give equal reports.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/base/signals.h"
#include "launcher/client/connection.h"
#include "launcher/client/served_chat_template.h"
#include "launcher/eval/questions.h"
#include "launcher/eval/score_board.h"

namespace lockstep {

struct ExamOptions {
  // How the model wants questions written; null: contents, a line each. Must outlive the exam.
  const ServedChatTemplate* chat_template = nullptr;
  int concurrency = 16;                               // questions in flight
  int max_tokens = 128;                               // of a reply
  absl::Duration timeout = absl::InfiniteDuration();  // of a question
};

// num_right of num_done, after each reply.
using OnExamProgress = std::function<void(int64_t num_done, int64_t num_right)>;

// Greedy replies to all questions. Errors: the server's for the first question that failed, with
// its number; CANCELLED after an interrupt.
absl::StatusOr<ScoreBoard> Examine(const Connection& connection,
                                   const std::vector<Question>& questions,
                                   const ExamOptions& options, InterruptWatcher& interrupts,
                                   const OnExamProgress& on_progress);

}  // namespace lockstep
