// lockstep tokenize: text to token ids and back, as the server's model does it.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "launcher/cli/add_command.h"
#include "launcher/cli/values.h"
#include "launcher/client/connection.h"
#include "launcher/client/prompts.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

constexpr char kTokenizeCommand[] = "tokenize";
constexpr absl::Duration kTokenizeTimeout = absl::Seconds(60);

struct TokenizeOptions {
  ConnectionFlags connection;
  PromptSources prompts;
  bool parse_special_tokens = false;
  bool no_bos = false;
  bool json = false;
};

// With token ids, the text they stand for; else the text's ids.
grpc::Status Translate(const Connection& connection, const TokenizeOptions& options,
                       Prompt& prompt) {
  grpc::ClientContext context;
  connection.Prepare(context, kTokenizeTimeout);
  if (!prompt.token_ids.empty()) {
    v1::DetokenizeRequest request;
    v1::DetokenizeResponse response;
    request.mutable_token_ids()->Assign(prompt.token_ids.begin(), prompt.token_ids.end());
    request.set_include_special_tokens(true);
    const grpc::Status status = connection.stub().Detokenize(&context, request, &response);
    prompt.shown = response.text();
    return status;
  }
  v1::TokenizeRequest request;
  v1::TokenizeResponse response;
  request.set_text(prompt.shown);
  request.set_parse_special_tokens(options.parse_special_tokens);
  request.set_add_special_tokens(!options.no_bos);
  const grpc::Status status = connection.stub().Tokenize(&context, request, &response);
  prompt.token_ids.assign(response.token_ids().begin(), response.token_ids().end());
  return status;
}

int RunTokenize(const TokenizeOptions& options) {
  auto prompts = ReadPrompts(options.prompts);
  if (!prompts.ok()) return Fail(kTokenizeCommand, prompts.status());
  const auto connection = Connection::Open(options.connection);
  if (!connection.ok()) return FailUsage(kTokenizeCommand, connection.status().message());
  for (Prompt& prompt : *prompts) {
    const bool from_ids = !prompt.token_ids.empty();
    const grpc::Status status = Translate(**connection, options, prompt);
    if (!status.ok()) return Fail(kTokenizeCommand, (*connection)->Explain(status));
    if (options.json) {
      const nlohmann::ordered_json line = {{"text", ValidUtf8(prompt.shown)},
                                           {"token_ids", prompt.token_ids}};
      std::printf("%s\n", line.dump().c_str());
    } else if (from_ids) {
      std::printf("%s\n", prompt.shown.c_str());
    } else {
      std::printf("%s\n", absl::StrJoin(prompt.token_ids, ",").c_str());
    }
  }
  return kExitOk;
}

}  // namespace

void AddTokenizeCommand(CLI::App& program, CommandBody& chosen) {
  TokenizeOptions* options = nullptr;
  CLI::App* command = AddCommand(program, chosen, kTokenizeCommand, "Text to token ids, or back",
                                 &RunTokenize, options);
  AddPromptFlags(*command, options->prompts);
  command
      ->add_flag("--parse-special-tokens", options->parse_special_tokens,
                 "read <|...|> in the text as special tokens")
      ->group("Prompt");
  command->add_flag("--no-bos", options->no_bos, "do not add the beginning-of-text token")
      ->group("Prompt");
  command->add_flag("--json", options->json, "one JSON object per text, a line each");
  AddConnectionFlags(*command, options->connection);
}

}  // namespace lockstep
