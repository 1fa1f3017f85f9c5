#include "model/chat_template/chat_template.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/chat_template/interpreter.h"
#include "model/chat_template/parser.h"
#include "model/tokenizer/utf8.h"

namespace lockstep {

struct ChatTemplate::Impl {
  jinja::Body body;
};

namespace {

jinja::Value MessagesOf(const nlohmann::ordered_json& messages) {
  jinja::Value value = jinja::Value::OfJson(messages);
  if (value.list() == nullptr) return value;
  for (const jinja::Value& message : *value.list()) {
    if (message.dict() == nullptr) continue;
    for (auto& [name, entry] : message.mutable_dict()->entries) {
      if (name.text() == "role" && entry.is_text()) {
        entry = jinja::Value::Markup(entry.text()->text());
      }
    }
  }
  return value;
}

}  // namespace

ChatTemplate::ChatTemplate(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view source) {
  if (source.size() > kMaxChatTemplateBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has ", source.size(), " bytes, more than ", kMaxChatTemplateBytes));
  }
  if (FindInvalidUtf8(source) != std::string_view::npos) {
    return absl::InvalidArgumentError("it is not valid UTF-8");
  }
  ASSIGN_OR_RETURN(jinja::Body body, jinja::ParseTemplate(source));
  return ChatTemplate(std::make_unique<const Impl>(Impl{std::move(body)}));
}

absl::StatusOr<std::vector<TextPiece>> ChatTemplate::Render(const ChatVariables& variables) const {
  jinja::Interpreter::Variables all;
  for (const auto& [name, text] : variables.markup) {
    all.emplace_back(name, jinja::Value::Markup(text));
  }
  for (const auto& [name, value] : variables.input.items()) {
    all.emplace_back(name, name == "messages" ? MessagesOf(value) : jinja::Value::OfJson(value));
  }
  jinja::Interpreter interpreter(std::move(all), variables.now, variables.zone);
  ASSIGN_OR_RETURN(const MarkedText text, interpreter.Run(impl_->body));
  return text.Pieces();
}

}  // namespace lockstep
