// From one request's tokens to its client's events: text, stop strings, log-probabilities, finish,
// usage.
//
// Used by the stream thread only, once the request is posted; no locks. What it writes goes through
// EventWriter.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/v1/generation.pb.h"
#include "model/tokenizer/tokenizer.h"
#include "runtime/controller/event_writer.h"
#include "runtime/controller/journal_entry.h"
#include "runtime/controller/stop_matcher.h"
#include "runtime/engine/engine.h"

namespace lockstep {

// What the text of an output depends on.
struct TextOptions {
  std::vector<std::string> stop_strings;
  bool include_stop_string = false;
  bool include_special_tokens = false;
  int32_t min_tokens = 0;       // stop strings are looked for in the text after these
  bool is_continuation = true;  // of a prompt with text in it
  bool is_constrained = false;  // to a form, of which a special token that ends it is no part
};

// What the client of an attached stream has of an output, and is not sent again.
struct ReceivedOutput {
  std::vector<int32_t> token_ids;
  int64_t num_text_bytes = 0;
};

struct StreamSpec {
  uint64_t number = 0;  // the engine's id of the request
  std::string request_id;
  int32_t num_prompt_tokens = 0;
  std::vector<int32_t> prompt;  // only with prompt_logprobs
  int num_outputs = 1;
  uint64_t seed = 0;
  int32_t max_tokens = 0;
  bool logprobs = false;
  TextOptions text;
  bool attaches = false;                        // takes the place of a stream the request may have
  std::vector<ReceivedOutput> received;         // [num_outputs], or empty
  std::shared_ptr<JournalEntry> journal_entry;  // with the writer; null = not in the journal
};

class RequestStream {
 public:
  enum class Next {
    kContinue,
    kStopOutput,  // a stop string ended this output: the engine must be told
    kCancel,      // the client does not read: the request must end
  };

  // tokenizer must outlive it; null = the model has none: token ids only, no text.
  RequestStream(StreamSpec spec, const Tokenizer* tokenizer, std::shared_ptr<EventWriter> writer);

  const StreamSpec& spec() const { return spec_; }
  EventWriter& writer() { return *writer_; }

  void Accept();
  Next Deliver(const engine::EngineEvent& event);
  // Every unfinished output ends with this reason, then the call with this status.
  void EndAll(v1::FinishReason reason, const grpc::Status& status);

 private:
  struct Output {
    Output(const Tokenizer* tokenizer, const StreamSpec& spec, int index);
    std::optional<IncrementalDetokenizer> detokenizer;
    StopMatcher matcher;
    int64_t num_received_text_bytes = 0;
    int32_t num_tokens = 0;
    int64_t num_text_bytes = 0;
    bool finished = false;
  };

  bool WritePromptLogprobs(const std::vector<LogprobInfo>& infos);
  bool WriteReceived(uint32_t index, const engine::EngineEvent& event);
  bool WriteToken(uint32_t index, const engine::EngineEvent& event);
  bool WriteText(uint32_t index, const std::string& text);
  bool WriteFinish(uint32_t index, v1::FinishReason reason, int32_t stop_token_id);
  static std::string Unseen(Output& output, const std::string& text);
  std::string TextOf(Output& output, int32_t token, bool stops) const;
  void FillLogprobs(int32_t token, const LogprobInfo& info, v1::Logprobs* logprobs) const;
  grpc::Status StatusAtEnd() const;

  StreamSpec spec_;
  const Tokenizer* tokenizer_;
  std::shared_ptr<EventWriter> writer_;
  std::vector<Output> outputs_;
  int num_unfinished_;
  int32_t next_prompt_position_ = 1;  // position 0 has no logprobs
  // Of the output that came first: what the others found was computed for it.
  std::optional<int32_t> num_cached_prompt_tokens_;
  int32_t num_guessed_tokens_ = 0;
  int32_t num_wrong_guesses_ = 0;
  bool deadline_passed_ = false;
};

}  // namespace lockstep
