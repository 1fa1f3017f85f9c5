// What constrained outputs cost a rank, on one thread. Run from the repository root:
//   grammar_bench [--benchmark_filter=...]
// The vocabulary is Llama 3's, from $LOCKSTEP_SHARED, else ../shared. masks: all that the first
// output of a constraint needs, one for each of its tokens (items), of which masks_made are not the
// same as one before. kept: the same for outputs after the first. (A rank that has a part of the
// vocabulary does the same work.)
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "kernels/base/check.h"
#include "model/grammar/constraint.h"
#include "model/grammar/token_masks.h"
#include "model/tokenizer/tokenizer.h"

namespace lockstep {
namespace {

struct Case {
  const char* name;
  OutputConstraint constraint;
  const char* output;
};
const Case kCases[] = {
    {"person",
     {OutputConstraint::Kind::kJsonSchema,
      R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer",
          "minimum": 0, "maximum": 120}, "tags": {"type": "array", "items": {"enum": ["red",
          "green", "blue"]}}}, "required": ["name", "age", "tags"], "additionalProperties": false})"},
     R"({"name": "Mary Ann Smith of the long street", "age": 42, "tags": ["red", "blue"]})"},
    {"any_json",
     {OutputConstraint::Kind::kJsonSchema, "{}"},
     R"({"items": [{"id": 1, "text": "The first one"}, {"id": 2.5e3, "text": null}], "ok": true})"},
    {"bounded_string",
     {OutputConstraint::Kind::kJsonSchema, R"({"type": "string", "maxLength": 500})"},
     R"("Here every character counts, so that no state comes back.")"},
    {"date",
     {OutputConstraint::Kind::kRegex, R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)"},
     "2026-11-26T15:04:05Z"},
    {"thought",
     {OutputConstraint::Kind::kChoices, R"(["yes", "no"])", OutputConstraint::Thought::kBegun},
     "First, is 17 a prime? It is not even; 3 * 5 = 15 < 17, and 17 < 25.\nSo it is.\n</think>\n\n"
     "yes"},
};

std::unique_ptr<Tokenizer> Llama3() {
  const char* shared = std::getenv("LOCKSTEP_SHARED");
  const std::filesystem::path root = shared != nullptr ? shared : "../shared";
  auto tokenizer = Tokenizer::Load(root / "tokenizers/llama3");
  LS_CHECK(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

grammar::MaskedVocabulary VocabularyOf(const Tokenizer& tokenizer) {
  const int32_t size = tokenizer.vocab_size();
  grammar::TokenTexts texts(size, [&](int32_t token) {
    return tokenizer.IsSpecial(token) ? std::string() : tokenizer.TokenBytes(token);
  });
  return {std::move(texts), 0, size, {*tokenizer.TokenId("<|eot_id|>")}};
}

// One output; how many of its tokens were looked for.
int64_t WriteOutput(const std::shared_ptr<grammar::TokenMasks>& masks,
                    const std::vector<int32_t>& tokens) {
  grammar::OutputMatcher output(masks);
  for (const int32_t token : tokens) {
    benchmark::DoNotOptimize(output.Allowed()->data());
    output.Add(token);
  }
  benchmark::DoNotOptimize(output.Allowed()->data());
  return std::ssize(tokens) + 1;
}

void Vocabulary(benchmark::State& state) {
  const auto tokenizer = Llama3();
  for (auto _ : state) benchmark::DoNotOptimize(VocabularyOf(*tokenizer));
}

void Compile(benchmark::State& state, const Case& of) {
  for (auto _ : state) benchmark::DoNotOptimize(grammar::CompileConstraint(of.constraint));
}

void Masks(benchmark::State& state, const Case& of, bool keeps) {
  const auto tokenizer = Llama3();
  const grammar::MaskedVocabulary vocabulary = VocabularyOf(*tokenizer);
  const grammar::Grammar grammar = grammar::CompileConstraint(of.constraint).value();
  const auto tokens = *tokenizer->Encode(of.output, {.add_special_tokens = false});
  auto masks = std::make_shared<grammar::TokenMasks>(grammar, vocabulary);
  WriteOutput(masks, tokens);
  const auto made = static_cast<double>(masks->num_masks_made());
  int64_t num_masks = 0;
  for (auto _ : state) {
    if (!keeps) masks = std::make_shared<grammar::TokenMasks>(grammar, vocabulary);
    num_masks += WriteOutput(masks, tokens);
  }
  state.SetItemsProcessed(num_masks);
  state.counters["masks_made"] = keeps ? 0 : made;
}

void Register() {
  const auto add = [](const std::string& name, auto run, auto... arguments) {
    benchmark::RegisterBenchmark(name.c_str(), run, arguments...)->Unit(benchmark::kMicrosecond);
  };
  add("vocabulary", Vocabulary);
  for (const Case& each : kCases) {
    add(std::string("compile/") + each.name, Compile, each);
    add(std::string("masks/") + each.name, Masks, each, false);
    add(std::string("kept/") + each.name, Masks, each, true);
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
