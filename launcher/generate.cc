// lockstep generate: streams completions of one or many prompts to the terminal.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_clock.h"
#include "launcher/base/mailbox.h"
#include "launcher/base/signals.h"
#include "launcher/cli/add_command.h"
#include "launcher/cli/values.h"
#include "launcher/client/connection.h"
#include "launcher/client/generation_call.h"
#include "launcher/client/prompts.h"
#include "launcher/client/request_flags.h"
#include "launcher/client/response.h"
#include "launcher/client/retry_clock.h"
#include "launcher/client/served_prompts.h"
#include "launcher/client/text_printer.h"

namespace lockstep {
namespace {

constexpr char kGenerateCommand[] = "generate";
// Prompts sent at once; the rest wait here rather than in the server's bounded queue.
constexpr size_t kMaxCallsInFlight = 256;

struct GenerateOptions {
  ConnectionFlags connection;
  double timeout_seconds = 0;
  PromptSources prompts;
  bool chat = false;
  std::string system;  // of a chat
  RequestFlags request;
  bool no_echo = false;
  bool json = false;
  bool quiet = false;
  double retry_seconds = 30.0;
  std::string attach;

  bool echoes() const { return !no_echo && !json && !chat; }
};

struct Arrival {
  size_t prompt = 0;
  absl::Time received;
  v1::GenerateEvent event;
  std::optional<grpc::Status> done;
};

// Runs every prompt and shows what arrives. Used by main's thread; calls report through the
// mailbox.
class GenerateRun {
 public:
  GenerateRun(const GenerateOptions& options, const Connection& connection,
              v1::GenerateRequest request, std::vector<Prompt> prompts)
      : options_(options),
        connection_(connection),
        request_(std::move(request)),
        prompts_(std::move(prompts)),
        num_outputs_(static_cast<size_t>(options.request.num_outputs.value_or(1))) {
    if (!options_.json && options.attach.empty()) MakePrinter();
  }

  int Run(InterruptWatcher& interrupts) {
    started_ = SteadyNow();
    while (num_done_ < prompts_.size()) {
      StartCalls();
      WaitReadable({mailbox_.fd(), interrupts.fd()}, StartDueContinuations());
      if (interrupts.TakeCount() > 0) Interrupt();
      for (Arrival& arrival : mailbox_.TakeAll()) Handle(arrival);
    }
    if (!options_.quiet && !options_.json) PrintSummary();
    return failed_ ? kExitFailure : kExitOk;
  }

 private:
  struct Running {
    std::unique_ptr<Response> response;
    std::unique_ptr<GenerationCall> call;
    RetryClock retries;
    absl::Time continue_at = absl::InfiniteFuture();  // when the server went away
    bool echoed = false;
    bool told = false;  // the user, that the server is lost
  };

  void MakePrinter() {
    printer_ = std::make_unique<TextPrinter>(stdout, Headings(), ::isatty(STDOUT_FILENO) == 1);
  }

  std::vector<std::string> Headings() const {
    std::vector<std::string> headings;
    for (size_t prompt = 0; prompt < prompts_.size(); ++prompt) {
      for (size_t output = 0; output < num_outputs_; ++output) {
        std::string heading = absl::StrCat("prompt ", prompt + 1);
        if (num_outputs_ > 1) absl::StrAppend(&heading, ", output ", output + 1);
        const std::string& text = prompts_[prompt].shown;  // of an attached request not known
        if (!text.empty()) absl::StrAppend(&heading, ": ", Excerpt(text, 60));
        headings.push_back(std::move(heading));
      }
    }
    return headings;
  }

  void StartCalls() {
    while (!interrupted_ && running_.size() < prompts_.size() &&
           running_.size() - num_done_ < kMaxCallsInFlight) {
      const size_t index = running_.size();
      Running& run = running_.emplace_back(
          Running{.response = std::make_unique<Response>(SteadyNow()),
                  .call = nullptr,
                  .retries = RetryClock(absl::Seconds(options_.retry_seconds))});
      if (!options_.attach.empty()) {
        v1::AttachRequest request;
        request.set_request_id(options_.attach);
        run.call = Start(index, std::move(request));
      } else {
        v1::GenerateRequest request = request_;
        SetPrompt(prompts_[index], request);
        run.call = Start(index, std::move(request));
      }
    }
  }

  template <typename Request>
  std::unique_ptr<GenerationCall> Start(size_t index, Request request) {
    const auto on_event = [this, index](const v1::GenerateEvent& event) {
      mailbox_.Put({index, SteadyNow(), event, std::nullopt});
      return true;
    };
    const auto on_done = [this, index](const grpc::Status& status) {
      mailbox_.Put({index, SteadyNow(), {}, status});
    };
    const absl::Duration timeout = options_.timeout_seconds > 0
                                       ? absl::Seconds(options_.timeout_seconds)
                                       : absl::InfiniteDuration();
    return std::make_unique<GenerationCall>(connection_, std::move(request), timeout,
                                            GenerationCall::Handlers{on_event, on_done});
  }

  // Returns how long until the next one is due.
  absl::Duration StartDueContinuations() {
    const absl::Time now = SteadyNow();
    absl::Time next = absl::InfiniteFuture();
    for (size_t index = 0; index < running_.size(); ++index) {
      Running& run = running_[index];
      if (run.continue_at <= now) {
        run.continue_at = absl::InfiniteFuture();
        run.call = Start(index, run.response->Continuation());
      }
      next = std::min(next, run.continue_at);
    }
    return next - now;
  }

  // True when the stream broke and the server, or the next one at its place, may go on with it.
  bool ContinueLater(Running& run, const grpc::Status& status) {
    if (interrupted_ || !MayGoOn(status.error_code(), run.retries) ||
        !run.response->accepted().attachable()) {
      return false;
    }
    const std::optional<absl::Time> at = run.retries.Failed(SteadyNow());
    if (!at) return false;
    if (!std::exchange(run.told, true) && !options_.quiet) {
      std::fprintf(stderr, "[lost the server; looking for it for %s]\n",
                   FormatSeconds(options_.retry_seconds).c_str());
    }
    run.continue_at = *at;
    return true;
  }

  void Interrupt() {
    if (interrupted_) return;
    interrupted_ = true;
    failed_ = true;
    num_done_ += prompts_.size() - running_.size();  // never started
    for (size_t index = 0; index < running_.size(); ++index) {
      Running& run = running_[index];
      if (run.call) run.call->Cancel();
      if (std::exchange(run.continue_at, absl::InfiniteFuture()) != absl::InfiniteFuture()) {
        Finish(index, grpc::Status::CANCELLED);
      }
    }
  }

  void Handle(Arrival& arrival) {
    Running& run = running_[arrival.prompt];
    if (arrival.done) {
      run.call.reset();
      if (run.response->complete()) arrival.done = grpc::Status::OK;  // it broke after its end
      if (!ContinueLater(run, *arrival.done)) Finish(arrival.prompt, *arrival.done);
      return;
    }
    run.retries.Succeeded();
    run.told = false;
    run.response->Add(arrival.event, arrival.received);
    if (!options_.json) Print(arrival.prompt, arrival.event);
  }

  void Print(size_t prompt, const v1::GenerateEvent& event) {
    if (event.has_accepted() && printer_ == nullptr) {  // Attach: now it is known what to expect
      num_outputs_ =
          static_cast<size_t>(std::clamp(event.accepted().num_outputs(), 1, kMaxOutputs));
      MakePrinter();
    }
    if (printer_ == nullptr) return;  // not before it was accepted
    const size_t first = prompt * num_outputs_;
    if (event.has_accepted()) {
      if (!options_.echoes() || std::exchange(running_[prompt].echoed, true)) return;
      for (size_t i = 0; i < num_outputs_; ++i) printer_->Append(first + i, prompts_[prompt].shown);
    } else if (event.has_delta() && event.delta().output_index() < num_outputs_) {
      printer_->Append(first + event.delta().output_index(), event.delta().text());
    } else if (event.has_finished() && event.finished().output_index() < num_outputs_) {
      printer_->Finish(first + event.finished().output_index());
    }
  }

  void Finish(size_t prompt, const grpc::Status& status) {
    ++num_done_;
    Running& run = running_[prompt];
    if (printer_) {
      for (size_t i = 0; i < num_outputs_; ++i) {
        printer_->Finish(prompt * num_outputs_ + i, /*fails=*/!status.ok());
      }
    }
    const bool cancelled = interrupted_ && status.error_code() == grpc::StatusCode::CANCELLED;
    if (!status.ok() && !cancelled) ReportError(prompt, connection_.Explain(status));
    if (options_.json) PrintJson(prompt, status);
    num_tokens_ += run.response->num_output_tokens();
    if (prompt > 0) run.response.reset();  // the first one's timing is in the summary
    run.call.reset();
  }

  void ReportError(size_t prompt, const absl::Status& status) {
    failed_ = true;
    const std::string place = prompts_.size() == 1 ? "" : absl::StrCat("prompt ", prompt + 1, ": ");
    Fail(kGenerateCommand,
         absl::Status(status.code(), absl::StrCat(place, WithFlagNames(status.message()))));
  }

  void PrintJson(size_t prompt, const grpc::Status& status) {
    nlohmann::ordered_json line = {{"prompt_index", prompt},
                                   {"prompt", ValidUtf8(prompts_[prompt].shown)}};
    line.update(running_[prompt].response->ToJson());
    if (!status.ok()) {
      line["error"] = {{"code", static_cast<int>(status.error_code())},
                       {"message", ValidUtf8(connection_.Explain(status).message())}};
    }
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }

  void PrintSummary() const {
    if (num_tokens_ == 0 || running_.empty()) return;
    const Response& first = *running_.front().response;
    const double seconds = absl::ToDoubleSeconds(SteadyNow() - started_);
    std::string line =
        absl::StrFormat("[%s tokens in %s", FormatCount(num_tokens_), FormatSeconds(seconds));
    if (first.num_output_tokens() > 0) {
      absl::StrAppend(&line, ", first token after ",
                      FormatSeconds(absl::ToDoubleSeconds(first.first_token() - first.started())));
    }
    std::fprintf(stderr, "%s, %.0f tokens/s]\n", line.c_str(),
                 static_cast<double>(num_tokens_) / seconds);
  }

  const GenerateOptions& options_;
  const Connection& connection_;
  const v1::GenerateRequest request_;
  const std::vector<Prompt> prompts_;
  size_t num_outputs_;
  std::unique_ptr<TextPrinter> printer_;  // none with --json, or until an attached request is known
  Mailbox<Arrival> mailbox_;
  std::deque<Running> running_;  // by prompt index; started ones
  absl::Time started_;
  size_t num_done_ = 0;
  int64_t num_tokens_ = 0;
  bool interrupted_ = false;
  bool failed_ = false;
};

// Flags that would have no effect.
absl::Status CheckCombination(const GenerateOptions& options) {
  if (!options.json && (options.request.logprobs || options.request.prompt_logprobs)) {
    return absl::InvalidArgumentError("--logprobs and --prompt-logprobs need --json");
  }
  const PromptSources& prompts = options.prompts;
  const bool has_prompts =
      !prompts.texts.empty() || !prompts.file.empty() || !prompts.token_ids.empty();
  if (!options.attach.empty() && has_prompts) {
    return absl::InvalidArgumentError("--attach is instead of a prompt");
  }
  if (options.chat && (!options.attach.empty() || !prompts.token_ids.empty())) {
    return absl::InvalidArgumentError("--chat is for texts, not for --attach or token ids");
  }
  if (options.chat && (options.request.parse_special_tokens || options.request.no_bos)) {
    return absl::InvalidArgumentError(
        "--parse-special-tokens and --no-bos mean nothing with --chat: the template has the "
        "markers");
  }
  if (!options.system.empty() && !options.chat) {
    return absl::InvalidArgumentError("--system is for --chat");
  }
  return absl::OkStatus();
}

int RunGenerate(const GenerateOptions& options) {
  if (const absl::Status status = CheckCombination(options); !status.ok()) {
    return FailUsage(kGenerateCommand, status.message());
  }
  auto request = MakeRequest(options.request);
  if (!request.ok()) return Fail(kGenerateCommand, request.status());
  auto prompts = options.attach.empty() ? ReadPrompts(options.prompts) : std::vector<Prompt>(1);
  if (!prompts.ok()) return Fail(kGenerateCommand, prompts.status());
  if (!options.request.request_id.empty() && prompts->size() > 1) {
    return FailUsage(kGenerateCommand, "--request-id is for one prompt");
  }
  InterruptWatcher interrupts;  // after standard input was read, before gRPC starts threads
  const auto connection = Connection::Open(options.connection);
  if (!connection.ok()) return FailUsage(kGenerateCommand, connection.status().message());
  std::optional<EndAtInterrupt> early(std::in_place, interrupts, [] { return kExitFailure; });
  absl::Status status;
  if (options.chat) status = WriteAsChats(**connection, options.system, *prompts);
  if (status.ok() && options.echoes()) status = DetokenizePrompts(**connection, *prompts);
  if (!status.ok()) return Fail(kGenerateCommand, status);
  early.reset();
  GenerateRun run(options, **connection, *std::move(request), *std::move(prompts));
  return run.Run(interrupts);
}

}  // namespace

void AddGenerateCommand(CLI::App& program, CommandBody& chosen) {
  GenerateOptions* options = nullptr;
  CLI::App* command =
      AddCommand(program, chosen, kGenerateCommand, "Stream completions of one or many prompts",
                 &RunGenerate, options);
  AddPromptFlags(*command, options->prompts);
  command
      ->add_flag("--chat", options->chat,
                 "each prompt is what a user says, written as the model's chat template has it")
      ->group("Prompt");
  command->add_option("--system", options->system, "what the model is told before, with --chat")
      ->type_name("TEXT")
      ->group("Prompt");
  AddSamplingFlags(*command, options->request);
  AddStopFlags(*command, options->request);
  AddConstraintFlags(*command, options->request);
  AddOutputFlags(*command, options->request);
  const char* group = "What is returned";
  command
      ->add_flag("--no-echo", options->no_echo,
                 "print the completion only (default: the prompt first)")
      ->group(group);
  command->add_flag("--json", options->json, "one JSON object per prompt, a line each")
      ->group(group);
  command->add_flag("--quiet,-q", options->quiet, "no summary line on stderr")->group(group);
  AddConnectionFlags(*command, options->connection);
  command
      ->add_option("--timeout", options->timeout_seconds,
                   "give up after this long (default: never)")
      ->type_name("SECONDS")
      ->check(Between(0.0, 1e9))
      ->group("Connection");
  command
      ->add_option("--retry-seconds", options->retry_seconds,
                   "how long to look for a server that went away and go on, if it keeps a journal")
      ->type_name("SECONDS")
      ->check(Between(0.0, 1e6))
      ->capture_default_str()
      ->group("Connection");
  command
      ->add_option(
          "--attach", options->attach,
          "instead of a prompt: print the whole output of a request in the server's journal")
      ->type_name("REQUEST_ID")
      ->group("Connection");
  command
      ->add_option("--request-id", options->request.request_id,
                   "name the request, for --attach (default: the server draws one)")
      ->type_name("REQUEST_ID")
      ->group("Connection");
  command->footer(
      "Examples:\n  lockstep generate --temperature 0 --max-tokens 200 \"Once upon a time\"\n"
      "  lockstep generate --chat \"What is 12 + 30?\"\n"
      "Exit codes: 0 all prompts completed, 1 a failure, an interrupt or a value that the server "
      "refuses, 2 wrong usage.");
}

}  // namespace lockstep
