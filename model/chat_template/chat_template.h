// How a model wants a conversation written: the Jinja template that its tokenizer_config.json, or
// chat_template.jinja, brings.
//
// A template can compute text of what it is given, and nothing else: no files, no names of the
// program, no more than a bounded amount of work. What it renders tells the template's own words,
// in which special tokens are meant, from what people said, which stays text whatever it looks
// like.
// Source: huggingface.co/docs/transformers, "Chat templates"; Jinja's own documentation.
// Immutable after Parse; thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "model/chat_template/marked_text.h"
#include "nlohmann/json.hpp"

namespace lockstep {

inline constexpr size_t kMaxChatTemplateBytes = size_t{1} << 20;

struct ChatVariables {
  // "messages", "tools", "add_generation_prompt", ...: what people say, none of it markup but the
  // roles of messages, of which the caller knows that they are roles: templates make markers of
  // them ("<|user|>").
  nlohmann::ordered_json input;
  // "bos_token" and such: markup.
  std::vector<std::pair<std::string, std::string>> markup;
  absl::Time now = absl::Now();  // which a template may ask for
  absl::TimeZone zone = absl::LocalTimeZone();
};

class ChatTemplate {
 public:
  // INVALID_ARGUMENT with the line of what is not understood.
  static absl::StatusOr<ChatTemplate> Parse(std::string_view source);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // FAILED_PRECONDITION in the template's words when it refuses what it is given; INVALID_ARGUMENT
  // with the line of what cannot be computed; RESOURCE_EXHAUSTED.
  absl::StatusOr<std::vector<TextPiece>> Render(const ChatVariables& variables) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace lockstep
