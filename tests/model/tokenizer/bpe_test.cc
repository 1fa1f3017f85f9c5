// The merge queue against the definition: join the leftmost pair of the lowest rank, again and
// again.
#include "model/tokenizer/bpe.h"

#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

using Merges = std::vector<std::pair<std::string, std::string>>;

std::vector<std::string> NaiveEncode(std::string_view text, const Merges& merges) {
  std::vector<std::string> parts;
  for (const char c : text) parts.emplace_back(1, c);
  while (true) {
    size_t best = merges.size(), best_at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto pair = std::pair(parts[i], parts[i + 1]);
      const size_t rank = std::find(merges.begin(), merges.end(), pair) - merges.begin();
      if (rank < best) best = rank, best_at = i;
    }
    if (best == merges.size()) return parts;
    parts[best_at] += parts[best_at + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(best_at) + 1);
  }
}

// Letters a, b, c and random merges of what exists so far, so that ranks conflict a lot.
Merges RandomMerges(std::mt19937& random) {
  std::vector<std::string> tokens = {"a", "b", "c"};
  std::set<std::pair<std::string, std::string>> seen;
  Merges merges;
  const int count = 1 + static_cast<int>(random() % 20);
  for (int i = 0; i < count; ++i) {
    const std::pair merge(tokens[random() % tokens.size()], tokens[random() % tokens.size()]);
    if (merge.first.size() + merge.second.size() > 12 || !seen.insert(merge).second) continue;
    merges.push_back(merge);
    tokens.push_back(merge.first + merge.second);
  }
  std::shuffle(merges.begin(), merges.end(), random);
  return merges;
}

TokenizerSpec SpecOf(const Merges& merges) {
  std::set<std::string> tokens = {"a", "b", "c"};
  for (const auto& [left, right] : merges) tokens.insert(left + right);
  TokenizerSpec spec;
  for (const std::string& token : tokens) {
    spec.model.vocab.emplace_back(token, static_cast<int32_t>(spec.model.vocab.size()));
  }
  spec.model.merges = merges;
  return spec;
}

TEST(Bpe, JoinsTheLowestRankFirstThenTheLeftmost) {
  std::mt19937 random(3);
  for (int round = 0; round < 400; ++round) {
    const Merges merges = RandomMerges(random);
    TokenizerSpec spec = SpecOf(merges);
    const auto vocabulary = Vocabulary::Make(spec);
    ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
    const auto bpe = Bpe::Make(spec.model, *vocabulary);
    ASSERT_TRUE(bpe.ok()) << bpe.status();
    Bpe::Scratch scratch;
    for (int text_number = 0; text_number < 20; ++text_number) {
      std::string text(random() % 30, 'a');
      for (char& c : text) c = static_cast<char>('a' + random() % 3);
      std::vector<int32_t> ids;
      ASSERT_TRUE(bpe->Encode(text, scratch, ids).ok());
      std::vector<std::string> parts;
      for (const int32_t id : ids) parts.push_back(vocabulary->Content(id));
      ASSERT_EQ(parts, NaiveEncode(text, merges)) << text;
    }
  }
}

TEST(Bpe, MergeOfUnknownTokensIsRefused) {
  for (const auto& merge : Merges{{"a", "x"}, {"x", "a"}, {"a", "b"}}) {
    TokenizerSpec spec = SpecOf({});
    spec.model.merges = {merge};
    const auto vocabulary = Vocabulary::Make(spec);
    const auto bpe = Bpe::Make(spec.model, *vocabulary);
    EXPECT_EQ(bpe.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(bpe.status().message()), HasSubstr("merge 0"));
  }
}

}  // namespace
}  // namespace lockstep
