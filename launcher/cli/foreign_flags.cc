#include "launcher/cli/foreign_flags.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launcher/cli/add_command.h"

namespace lockstep {
namespace {

struct ForeignFlag {
  absl::string_view name;
  const char* ours;  // the hint is for commands that have it
  absl::string_view value;
  absl::string_view said = {};  // instead of "is OURS VALUE here"
};

constexpr absl::string_view kModelIsPositional = "is not needed: MODEL stands without a flag";

// Of several for one name the first that the command has.
constexpr ForeignFlag kForeignFlags[] = {
    {"--port", "--http-listen", " HOST:PORT (of OpenAI's API)"},
    {"--port", "--listen", " HOST:PORT"},
    {"--port", "--server", " HOST:PORT"},
    {"--host", "--http-listen", " HOST:PORT (of OpenAI's API)"},
    {"--host", "--listen", " HOST:PORT"},
    {"--host", "--server", " HOST:PORT"},
    {"--model", "model", "", kModelIsPositional},
    {"--model-path", "model", "", kModelIsPositional},
    {"-m", "model", "", kModelIsPositional},
    {"--tensor-parallel-size", "--tp", " N"},
    {"--tp-size", "--tp", " N"},
    {"-tp", "--tp", " N"},
    {"--pipeline-parallel-size", "--pp", " M"},
    {"--pp-size", "--pp", " M"},
    {"--data-parallel-size", "--replicas", " R"},
    {"--dp-size", "--replicas", " R"},
    {"--max-num-batched-tokens", "--max-batched-tokens", " TOKENS"},
    {"--max-running-requests", "--max-num-seqs", " N"},
    {"--parallel", "--max-num-seqs", " N"},
    {"--context-length", "--max-model-len", " TOKENS"},
    {"--ctx-size", "--max-model-len", " TOKENS"},
    {"-c", "--max-model-len", " TOKENS"},
    {"--mem-fraction-static", "--gpu-memory-utilization", " PART"},
    {"--threads", "--threads-per-rank", " K"},
    {"-t", "--threads-per-rank", " K"},
    {"--cache-type-k", "--kv-cache-dtype", " fp8"},
    {"-ctk", "--kv-cache-dtype", " fp8"},
    {"--kv-offloading-size", "--kv-offload-gib", " GIB"},
    {"--hicache-size", "--kv-offload-gib", " GIB (of all ranks of a replica)"},
    {"--enable-hierarchical-cache", "--kv-offload-gib", " GIB (of all ranks of a replica)"},
    {"--api-key", "--api-token-file", " FILE"},
    {"--api-key", "--token-file", " FILE"},
    {"--speculative-config", "--speculative-tokens", " K"},
    {"--no-enable-prefix-caching", "--no-prefix-cache", ""},
    {"--disable-radix-cache", "--no-prefix-cache", ""},
    {"--enable-prefix-caching", "--no-prefix-cache", "",
     "is not needed: prefixes are cached unless --no-prefix-cache is given"},
    {"--n-predict", "--max-tokens", " TOKENS"},
    {"--max-new-tokens", "--max-tokens", " TOKENS"}};

}  // namespace

std::string ForeignFlagHint(const CLI::App& command, absl::string_view error) {
  for (const absl::string_view word : absl::StrSplit(error, ' ')) {
    const absl::string_view name = word.substr(0, word.find('='));
    for (const ForeignFlag& foreign : kForeignFlags) {
      if (name != foreign.name) continue;
      if (command.get_option_no_throw(foreign.ours) == nullptr) continue;
      return foreign.said.empty()
                 ? absl::StrCat("; ", name, " is ", foreign.ours, foreign.value, " here")
                 : absl::StrCat("; ", name, " ", foreign.said);
    }
  }
  return "";
}

}  // namespace lockstep
