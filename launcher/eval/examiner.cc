#include "launcher/eval/examiner.h"

#include <deque>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_clock.h"
#include "launcher/base/mailbox.h"
#include "launcher/client/generation_call.h"
#include "launcher/client/response.h"
#include "launcher/client/thought_reader.h"

namespace lockstep {
namespace {

class Exam {
 public:
  Exam(const Connection& connection, const std::vector<Question>& questions,
       const ExamOptions& options, const OnExamProgress& on_progress)
      : connection_(connection),
        questions_(questions),
        options_(options),
        on_progress_(on_progress) {}

  absl::StatusOr<ScoreBoard> Run(InterruptWatcher& interrupts) {
    while (num_done_ < asked_.size() || MayAsk()) {
      while (MayAsk()) Ask();
      if (num_done_ == asked_.size()) continue;  // nobody would wake us
      WaitReadable({mailbox_.fd(), interrupts.fd()}, absl::InfiniteDuration());
      if (interrupts.TakeCount() > 0) Stop(absl::CancelledError("interrupted"));
      for (const Done& done : mailbox_.TakeAll()) Take(done);
    }
    if (!failure_.ok()) return failure_;
    ScoreBoard scores;
    for (size_t i = 0; i < questions_.size(); ++i) scores.Add(questions_[i], asked_[i].reply);
    return scores;
  }

 private:
  // The response belongs to the call's gRPC thread until it reported itself done.
  struct Asked {
    Asked(absl::Time now, v1::Thought thought) : response(now), thought(thought) {}
    Response response;
    const v1::Thought thought;
    std::string reply;                     // without it
    std::unique_ptr<GenerationCall> call;  // last: destroyed first
  };
  struct Done {
    size_t question = 0;
    grpc::Status status;
  };

  bool MayAsk() const {
    return failure_.ok() && asked_.size() < questions_.size() &&
           asked_.size() - num_done_ < static_cast<size_t>(options_.concurrency);
  }

  // Its prompt; what marks turns there is the template's. Returns what the answer may begin with.
  absl::StatusOr<v1::Thought> Write(const Question& question, v1::GenerateRequest& request) const {
    if (options_.chat_template == nullptr) {
      for (const ChatMessage& message : question.messages) {
        absl::StrAppend(request.mutable_text(), message.content, "\n");
      }
      request.mutable_stop()->add_stop_strings("\n\n");
      return v1::THOUGHT_NONE;
    }
    ASSIGN_OR_RETURN(TrustedPrompt prompt,
                     options_.chat_template->RenderTrusted(question.messages));
    request.set_text(std::move(prompt.text));
    request.set_add_special_tokens(false);
    return prompt.thought;
  }

  void Ask() {
    const size_t index = asked_.size();
    v1::GenerateRequest request;
    const absl::StatusOr<v1::Thought> thought = Write(questions_[index], request);
    if (!thought.ok()) return StopAt(index, thought.status());
    Asked& asked = asked_.emplace_back(SteadyNow(), *thought);
    request.set_parse_special_tokens(true);
    request.mutable_sampling()->set_temperature(0.0f);
    request.mutable_stop()->set_max_tokens(options_.max_tokens);
    const auto on_event = [&asked](const v1::GenerateEvent& event) {
      asked.response.Add(event, SteadyNow());
      return true;
    };
    const auto on_done = [this, index](const grpc::Status& status) {
      mailbox_.Put({index, status});
    };
    asked.call = std::make_unique<GenerationCall>(connection_, std::move(request), options_.timeout,
                                                  GenerationCall::Handlers{on_event, on_done});
  }

  void StopAt(size_t question, const absl::Status& status) {
    Stop(absl::Status(status.code(),
                      absl::StrCat("question ", question + 1, ": ", status.message())));
  }

  void Take(const Done& done) {
    Asked& asked = asked_[done.question];
    ++num_done_;
    asked.call.reset();
    if (!done.status.ok()) {
      return StopAt(done.question, connection_.Explain(done.status));
    }
    if (!asked.response.outputs().empty()) {
      const std::string& text = asked.response.outputs().front().text;
      ThoughtReader reader(asked.thought);
      reader.Read(text, /*has_ended=*/true);
      asked.reply = std::string(reader.answer(text));
    }
    if (IsRight(questions_[done.question], asked.reply)) ++num_right_;
    if (on_progress_) {
      on_progress_(static_cast<int64_t>(num_done_), static_cast<int64_t>(num_right_));
    }
  }

  // The first reason counts.
  void Stop(absl::Status reason) {
    if (!failure_.ok()) return;
    failure_ = std::move(reason);
    for (Asked& asked : asked_) {
      if (asked.call) asked.call->Cancel();
    }
  }

  const Connection& connection_;
  const std::vector<Question>& questions_;
  const ExamOptions& options_;
  const OnExamProgress& on_progress_;
  Mailbox<Done> mailbox_;
  std::deque<Asked> asked_;  // by question; those that were asked
  size_t num_done_ = 0;
  size_t num_right_ = 0;
  absl::Status failure_;
};

}  // namespace

absl::StatusOr<ScoreBoard> Examine(const Connection& connection,
                                   const std::vector<Question>& questions,
                                   const ExamOptions& options, InterruptWatcher& interrupts,
                                   const OnExamProgress& on_progress) {
  return Exam(connection, questions, options, on_progress).Run(interrupts);
}

}  // namespace lockstep
