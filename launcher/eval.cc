// lockstep eval: asks a model questions whose answers are known and says how many it gets right.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "launcher/base/signals.h"
#include "launcher/cli/add_command.h"
#include "launcher/cli/values.h"
#include "launcher/client/connection.h"
#include "launcher/client/prompts.h"
#include "launcher/client/served_chat_template.h"
#include "launcher/eval/examiner.h"
#include "launcher/eval/local_server.h"
#include "launcher/eval/questions.h"
#include "launcher/eval/score_board.h"

namespace lockstep {
namespace {

constexpr char kEvalCommand[] = "eval";
constexpr char kQuestionsFile[] = "questions.jsonl";
constexpr absl::Duration kEvalInfoTimeout = absl::Seconds(10);

struct EvalOptions {
  const CLI::App* command = nullptr;
  ConnectionFlags connection;
  std::string model;  // empty = a server that runs
  int tp = 1;
  int pp = 1;
  std::string quantize = "none";
  std::string kv_cache_dtype = "auto";
  int threads_per_rank = 0;
  std::string questions_file;
  int concurrency = 16;
  int max_tokens = 128;
  std::vector<std::string> thresholds;
  bool show_wrong = false;
  bool json = false;
  bool quiet = false;
};

// A flag for a server that runs, given beside a model. The environment's are there for all
// commands.
std::optional<std::string> IdleFlag(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group() != kConnectionGroup || option->count() == 0) continue;
    const char* set = std::getenv(option->get_envname().c_str());
    if (set == nullptr || option->results().front() != set) return option->get_name();
  }
  return std::nullopt;
}

std::vector<std::string> ServeArguments(const EvalOptions& options) {
  std::vector<std::string> arguments = {
      options.model,
      "--tp",
      absl::StrCat(options.tp),
      "--pp",
      absl::StrCat(options.pp),
      "--quantize",
      options.quantize,
      "--kv-cache-dtype",
      options.kv_cache_dtype,
      "--share-gpus"};  // the layout may be larger than this host: answers count, not their speed
  if (options.threads_per_rank > 0) {
    arguments.insert(arguments.end(),
                     {"--threads-per-rank", absl::StrCat(options.threads_per_rank)});
  }
  return arguments;
}

// Those given, else those that lie beside the model.
absl::StatusOr<std::vector<Question>> LoadQuestions(const EvalOptions& options,
                                                    const v1::GetServerInfoResponse& info) {
  std::string path = options.questions_file;
  if (path.empty()) {
    path = (std::filesystem::path(info.model_path()) / kQuestionsFile).string();
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
      return absl::NotFoundError(absl::StrCat("no ", path, ": give the questions by --questions"));
    }
  }
  ASSIGN_OR_RETURN(const std::string lines, ReadFileOrStdin(path));
  auto questions = ParseQuestions(lines);
  if (questions.ok()) return questions;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", questions.status().message()));
}

// On a terminal a line that changes, elsewhere one for each tenth.
OnExamProgress MakeProgress(bool quiet, int64_t num_questions) {
  if (quiet) return nullptr;
  const bool is_terminal = ::isatty(STDERR_FILENO) == 1;
  return [=](int64_t num_done, int64_t num_right) {
    const int64_t step = is_terminal ? 1 : std::max<int64_t>(1, num_questions / 10);
    if (num_done % step != 0 && num_done != num_questions) return;
    std::fprintf(stderr, "%s%d of %d asked, %d right%s", is_terminal ? "\r\x1b[K" : "",
                 static_cast<int>(num_done), static_cast<int>(num_questions),
                 static_cast<int>(num_right), is_terminal && num_done < num_questions ? "" : "\n");
  };
}

absl::StatusOr<ScoreBoard> Examine(const EvalOptions& options, const Connection& connection,
                                   const v1::GetServerInfoResponse& info,
                                   const Thresholds& thresholds, InterruptWatcher& interrupts) {
  ASSIGN_OR_RETURN(const std::vector<Question> questions, LoadQuestions(options, info));
  RETURN_IF_ERROR(UsageErrorIfInvalid(CheckThresholds(thresholds, questions)));
  ExamOptions exam;
  ASSIGN_OR_RETURN(const std::optional<ServedChatTemplate> chat_template,
                   FetchChatTemplate(connection));
  if (chat_template) exam.chat_template = &*chat_template;
  exam.concurrency = options.concurrency;
  exam.max_tokens = options.max_tokens;
  if (!options.quiet) {
    std::fprintf(stderr, "%s, tp %d x pp %d; %d questions, %s\n",
                 TerminalText(info.model_name()).c_str(), info.tensor_parallel(),
                 info.pipeline_parallel(), static_cast<int>(questions.size()),
                 chat_template ? "as the model's chat template has them"
                               : "as lines of text: the model has no chat template");
  }
  return Examine(connection, questions, exam, interrupts,
                 MakeProgress(options.quiet, static_cast<int64_t>(questions.size())));
}

int Report(const EvalOptions& options, const v1::GetServerInfoResponse& info,
           const ScoreBoard& scores, const Thresholds& thresholds) {
  if (options.json) {
    nlohmann::ordered_json json = {{"model", ValidUtf8(info.model_name())},
                                   {"fingerprint", ValidUtf8(info.model_fingerprint())},
                                   {"tensor_parallel", info.tensor_parallel()},
                                   {"pipeline_parallel", info.pipeline_parallel()}};
    json.update(scores.ToJson());
    std::printf("%s\n", json.dump().c_str());
  } else {
    std::printf("%s", TerminalText(scores.ToText(options.show_wrong)).c_str());
  }
  const std::vector<std::string> misses = scores.Misses(thresholds);
  for (const std::string& miss : misses) Fail(kEvalCommand, absl::OutOfRangeError(miss));
  return misses.empty() ? kExitOk : kExitFailure;
}

int RunEval(const EvalOptions& options) {
  const auto thresholds = ParseThresholds(options.thresholds);
  if (!thresholds.ok()) {
    return FailUsage(kEvalCommand, absl::StrCat("--min ", thresholds.status().message()));
  }
  const auto idle = options.model.empty() ? std::nullopt : IdleFlag(*options.command);
  if (idle) {
    return FailUsage(kEvalCommand,
                     absl::StrCat(*idle, " is for a server that runs: MODEL has its own"));
  }
  InterruptWatcher interrupts;
  std::unique_ptr<LocalServer> own_server;
  ConnectionFlags connection_flags = options.connection;
  if (!options.model.empty()) {
    auto started = LocalServer::Start(ServeArguments(options), interrupts);
    if (!started.ok()) return Fail(kEvalCommand, started.status());
    own_server = *std::move(started);
    connection_flags = {.server = own_server->address()};
  }
  const auto connection = Connection::Open(connection_flags);
  if (!connection.ok()) return FailUsage(kEvalCommand, connection.status().message());
  std::optional<EndAtInterrupt> early(std::in_place, interrupts, [] { return kExitFailure; });
  const auto info = (*connection)->GetServerInfo(kEvalInfoTimeout);
  if (!info.ok()) return Fail(kEvalCommand, info.status());
  early.reset();
  const auto scores = Examine(options, **connection, *info, *thresholds, interrupts);
  if (!scores.ok()) return Fail(kEvalCommand, scores.status());
  return Report(options, *info, *scores, *thresholds);
}

void AddServerFlags(CLI::App& command, EvalOptions& options) {
  const char* group = "Server of its own";
  CLI::Option* model =
      command
          .add_option("model", options.model,
                      "directory of a checkpoint, served for this; none = a server that runs")
          ->type_name("MODEL");
  command.add_option("--tp", options.tp, "tensor parallel ranks")
      ->needs(model)
      ->type_name("N")
      ->check(Between(1, 65536))
      ->capture_default_str()
      ->group(group);
  command.add_option("--pp", options.pp, "pipeline stages")
      ->needs(model)
      ->type_name("M")
      ->check(Between(1, 65536))
      ->capture_default_str()
      ->group(group);
  command.add_option("--quantize", options.quantize, "none, int8, int4")
      ->needs(model)
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"none", "int8", "int4"}).description(""))
      ->capture_default_str()
      ->group(group);
  command.add_option("--kv-cache-dtype", options.kv_cache_dtype, "auto, fp8")
      ->needs(model)
      ->type_name("NAME")
      ->check(CLI::IsMember({"auto", "fp8"}).description(""))
      ->capture_default_str()
      ->group(group);
  command.add_option("--threads-per-rank", options.threads_per_rank, "(default: cores / ranks)")
      ->needs(model)
      ->type_name("K")
      ->check(Between(1, 4096))
      ->group(group);
}

void AddExamFlags(CLI::App& command, EvalOptions& options) {
  command
      .add_option("--questions", options.questions_file,
                  "JSON lines with \"task\", \"messages\" and \"answer\" (default: questions.jsonl "
                  "in the model's directory)")
      ->type_name("FILE");
  command.add_option("--concurrency", options.concurrency, "questions in flight")
      ->type_name("N")
      ->check(Between(1, 1024))
      ->capture_default_str();
  command.add_option("--max-tokens", options.max_tokens, "of a reply")
      ->type_name("N")
      ->check(Between(1, 1 << 20))
      ->capture_default_str();
  AddTexts(command, "--min", options.thresholds,
           "exit with 1 below this percentage, of all questions or of a task's; repeatable")
      ->type_name("[TASK=]PERCENT");
  command.add_flag("--show-wrong", options.show_wrong, "the wrong replies, too");
  command.add_flag("--json", options.json, "one JSON object, with the wrong replies");
  command.add_flag("--quiet,-q", options.quiet, "no progress on stderr");
}

}  // namespace

void AddEvalCommand(CLI::App& program, CommandBody& chosen) {
  EvalOptions* options = nullptr;
  CLI::App* command =
      AddCommand(program, chosen, kEvalCommand,
                 "Ask questions with known answers and count right ones", &RunEval, options);
  options->command = command;
  AddExamFlags(*command, *options);
  AddServerFlags(*command, *options);
  AddConnectionFlags(*command, options->connection);
  command->footer(
      "Replies are greedy. A reply is right when its last line is the answer's last line.\n"
      "Example:\n  lockstep eval MODEL --tp 2 --pp 2 --min recall=95 --min sum2=90\n"
      "Exit codes: 0 done and no --min missed, 1 a failure or a miss, 2 wrong usage.");
}

}  // namespace lockstep
