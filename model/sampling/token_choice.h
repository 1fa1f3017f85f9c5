// The choice of a token on the host: sources of candidates, and the walk over them that
// kernels/base/choice_walk.h defines. When no token can be chosen, token 0 is.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/choice_walk.h"
#include "model/sampling/row_kernels.h"

namespace lockstep {

// Tokens in the order of choice.
class CandidateSource {
 public:
  virtual ~CandidateSource() = default;
  // nullopt at the end; whether anything may follow that this source does not know is told by
  // truncated().
  virtual std::optional<Candidate> Next() = 0;
  virtual bool truncated() const = 0;
};

// The largest candidates of every rank's part of the vocabulary, merged. Ends, truncated, where a
// list that was cut off runs out.
class MergedCandidates final : public CandidateSource {
 public:
  struct List {
    std::span<const Candidate> candidates;  // sorted
    bool cut = false;                       // the rank has more
  };
  void Reset() { lists_.clear(), truncated_ = false; }
  void Add(List list) { lists_.push_back(list); }
  std::optional<Candidate> Next() override;
  bool truncated() const override { return truncated_; }

 private:
  std::vector<List> lists_;
  bool truncated_ = false;
};

// A whole row, sorted: least significant digit radix sort of the values' bits (Knuth, TAOCP vol. 3,
// section 5.2.5), stable, so that equal values stay in order of their ids. A millisecond for
// 128,000 tokens where std::sort takes ten.
class WholeRow final : public CandidateSource {
 public:
  void Reset(std::span<const float> row);  // row[i] belongs to token i
  std::optional<Candidate> Next() override;
  bool truncated() const override { return false; }

 private:
  struct Keyed {
    uint32_t key;  // ascending keys are descending values
    int32_t token;
  };
  void Sort();

  std::vector<Keyed> tokens_;  // above -infinity
  std::vector<Keyed> scratch_;
  size_t next_ = 0;
};

// Walks candidates and applies the rule. nullopt: the source ended truncated before the choice was
// certain. Scratch is reused between calls; one chooser per thread.
class TokenChooser {
 public:
  std::optional<int32_t> Choose(CandidateSource& source, const ChoiceRule& rule);

 private:
  struct Step {
    int32_t token;
    double weight;
    double sum;  // of weights up to here
  };
  class Steps;

  std::vector<Step> steps_;
};

}  // namespace lockstep
