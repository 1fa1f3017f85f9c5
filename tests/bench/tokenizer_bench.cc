// How fast the tokenizer loads, encodes and decodes on one thread. Run from the repository root:
//   tokenizer_bench [--benchmark_filter=...]
// The vocabularies and the English text (Llama 3's licence) come from $LOCKSTEP_SHARED, else
// ../shared. Every text is first checked to survive the round trip.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>

#include "kernels/base/check.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/support/read_file.h"

namespace lockstep {
namespace {

constexpr EncodeOptions kBare{.add_special_tokens = false};

std::filesystem::path Shared() {
  const char* given = std::getenv("LOCKSTEP_SHARED");
  return given != nullptr ? given : "../shared";
}

std::unique_ptr<Tokenizer> LoadOrDie(const std::filesystem::path& directory) {
  auto tokenizer = Tokenizer::Load(directory);
  LS_CHECK(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::string English() {
  std::string text = testing::ReadFile(Shared() / "tokenizers/llama3/LICENSE");
  LS_CHECK(!text.empty()) << "no text; set LOCKSTEP_SHARED";
  return text;
}

std::string Run(std::string_view unit) {
  std::string text;
  while (text.size() < 1'000'000) text += unit;
  return text;
}

void Load(benchmark::State& state, const std::string& directory) {
  for (auto _ : state) benchmark::DoNotOptimize(LoadOrDie(Shared() / directory));
}

void Encode(benchmark::State& state, const std::string& directory, const std::string& text) {
  const auto tokenizer = LoadOrDie(Shared() / directory);
  LS_CHECK(*tokenizer->Decode(*tokenizer->Encode(text, kBare), true) == text);
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer->Encode(text, kBare));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}

void Stream(benchmark::State& state, const std::string& directory, const std::string& text) {
  const auto tokenizer = LoadOrDie(Shared() / directory);
  const std::vector<int32_t> ids = *tokenizer->Encode(text, kBare);
  for (auto _ : state) {
    IncrementalDetokenizer detokenizer(*tokenizer, false, false);
    for (const int32_t id : ids) benchmark::DoNotOptimize(detokenizer.Add(id));
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(ids.size()));
}

void Register() {
  for (const std::string directory : {"tokenizers/llama3", "models/stories260K"}) {
    const auto add = [&](const std::string& name, auto run, auto... arguments) {
      benchmark::RegisterBenchmark((name + "/" + directory).c_str(), run, directory, arguments...)
          ->Unit(benchmark::kMillisecond);
    };
    add("load", Load);
    add("encode_english", Encode, English());
    add("encode_spaces", Encode, Run(" "));
    add("encode_letters", Encode, Run("a"));
    add("encode_emojis", Encode, Run("😀"));
    add("stream_english", Stream, English());
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  lockstep::Register();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
