#include "model/tokenizer/tokenizer_file.h"

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "model/json/strict_json.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxDepth = 16;
constexpr size_t kMaxRestValues = size_t{1}
                                  << 20;  // bounds the tree's memory; real files: < 10,000

// Receives nlohmann's parse events. A stream reader rather than json::parse because the tree of a
// 128,000-token vocabulary costs several times the reading itself, and because json::parse lets the
// last of two equal names win.
class Reader : public nlohmann::json_sax<Json> {
 public:
  TokenizerFile file;
  std::string error;

  bool null() override { return Scalar(nullptr); }
  bool boolean(bool value) override { return Scalar(value); }
  bool number_integer(int64_t value) override { return Scalar(value); }
  bool number_float(double value, const std::string&) override { return Scalar(value); }
  bool binary(Json::binary_t&) override { return Fail("holds binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (mode_ != Mode::kVocab) return Scalar(value);
    if (value > static_cast<uint64_t>(kMaxTokenId)) {
      return Fail(absl::StrCat("gives token ", Quote(vocab_token_), " the id ", value, ", above ",
                               kMaxTokenId));
    }
    file.vocab.emplace_back(std::move(vocab_token_), static_cast<int32_t>(value));
    return true;
  }

  bool string(std::string& value) override {
    if (mode_ == Mode::kMerges) return MergeText(value);
    if (mode_ == Mode::kMergePair) {
      merge_pair_.push_back(std::move(value));
      return merge_pair_.size() <= 2 || FailMerge();
    }
    return Scalar(std::move(value));
  }

  bool key(std::string& name) override {
    if (mode_ == Mode::kVocab) {
      vocab_token_ = std::move(name);
      return true;
    }
    Json& object = *open_.back();
    if (object.contains(name)) return Fail(absl::StrCat("repeats the name ", Quote(name)));
    key_ = std::move(name);
    return true;
  }

  bool start_object(size_t) override {
    if (mode_ == Mode::kNormal && AtModelMember("vocab")) {
      if (file.has_vocab) return Fail("repeats the name 'vocab'");
      mode_ = Mode::kVocab;
      file.has_vocab = true;
      return true;
    }
    return Open(Json::object());
  }

  bool start_array(size_t) override {
    if (mode_ == Mode::kMerges) {
      mode_ = Mode::kMergePair;
      merge_pair_.clear();
      return true;
    }
    if (mode_ == Mode::kNormal && AtModelMember("merges")) {
      if (file.has_merges) return Fail("repeats the name 'merges'");
      mode_ = Mode::kMerges;
      file.has_merges = true;
      return true;
    }
    return Open(Json::array());
  }

  bool end_object() override {
    if (mode_ == Mode::kVocab) {
      mode_ = Mode::kNormal;
      return true;
    }
    return Close();
  }

  bool end_array() override {
    if (mode_ == Mode::kMergePair) {
      if (merge_pair_.size() != 2) return FailMerge();
      file.merges.emplace_back(std::move(merge_pair_[0]), std::move(merge_pair_[1]));
      mode_ = Mode::kMerges;
      return true;
    }
    if (mode_ == Mode::kMerges) {
      mode_ = Mode::kNormal;
      return true;
    }
    return Close();
  }

  bool parse_error(size_t position, const std::string&, const Json::exception& e) override {
    return Fail(absl::StrCat("is ", JsonSyntaxError(position, e.what()).message()));
  }

 private:
  enum class Mode { kNormal, kVocab, kMerges, kMergePair };

  bool Fail(std::string why) {
    if (error.empty()) error = std::move(why);
    return false;
  }
  bool FailMerge() {
    return Fail(absl::StrCat("has merge ", file.merges.size(),
                             " that is neither \"a b\" nor [\"a\", \"b\"]"));
  }

  // True where the value of the top-level object "model"'s member `name` begins.
  bool AtModelMember(std::string_view name) const {
    return open_.size() == 2 && in_model_ && key_ == name;
  }

  bool MergeText(const std::string& text) {
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      return FailMerge();
    }
    file.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    return true;
  }

  bool Scalar(Json value) {
    if (mode_ == Mode::kVocab) {
      return Fail(absl::StrCat("gives token ", Quote(vocab_token_),
                               " an id that is no number from 0 to ", kMaxTokenId));
    }
    if (mode_ != Mode::kNormal) return FailMerge();
    return Place(std::move(value)) != nullptr;
  }

  bool Open(Json container) {
    if (mode_ == Mode::kVocab) return Scalar(nullptr);
    if (mode_ != Mode::kNormal) return FailMerge();
    if (open_.size() >= kMaxDepth) return Fail(absl::StrCat("nests deeper than ", kMaxDepth));
    if (open_.size() == 1) in_model_ = key_ == "model" && container.is_object();
    Json* placed = Place(std::move(container));
    if (placed == nullptr) return false;
    open_.push_back(placed);
    return true;
  }

  bool Close() {
    open_.pop_back();
    if (open_.size() == 1) in_model_ = false;
    return true;
  }

  // Puts a value where the events stand. The pointers in open_ stay good: a container gets no
  // sibling before it is closed.
  Json* Place(Json value) {
    if (++num_values_ > kMaxRestValues) {
      Fail(absl::StrCat("has more than ", kMaxRestValues, " values outside vocab and merges"));
      return nullptr;
    }
    if (open_.empty()) {
      file.rest = std::move(value);
      return &file.rest;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }

  Mode mode_ = Mode::kNormal;
  bool in_model_ = false;
  size_t num_values_ = 0;
  std::vector<Json*> open_;  // the containers around the current event
  std::string key_;
  std::string vocab_token_;
  std::vector<std::string> merge_pair_;
};

// Looks for one token. The root's members are at depth 1, those of "added_tokens"' entries and of
// "model"'s vocab at depth 3.
class TokenFinder : public nlohmann::json_sax<Json> {
 public:
  explicit TokenFinder(std::string_view content) : content_(content) {}
  std::optional<int32_t> found;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool binary(Json::binary_t&) override { return true; }
  bool parse_error(size_t, const std::string&, const Json::exception&) override { return false; }

  bool number_unsigned(uint64_t value) override {
    if (depth_ != 3 || value > static_cast<uint64_t>(kMaxTokenId)) return true;
    if (part_ == "added_tokens" && name_ == "id") added_id_ = static_cast<int32_t>(value);
    if (in_vocab_ && name_ == content_) found = static_cast<int32_t>(value);
    return !found;
  }
  bool string(std::string& value) override {
    if (depth_ == 3 && name_ == "content") is_added_ = value == content_;
    return true;
  }
  bool key(std::string& name) override {
    if (depth_ == 1) part_ = name;
    if (depth_ == 3)
      name_ = std::move(name);
    else if (depth_ == 2)
      in_vocab_ = part_ == "model" && name == "vocab";
    return true;
  }
  bool start_object(size_t) override { return Open(); }
  bool start_array(size_t) override { return Open(); }
  bool end_object() override {
    if (depth_ == 3 && part_ == "added_tokens" && is_added_) found = added_id_;
    return Close();
  }
  bool end_array() override { return Close(); }

 private:
  bool Open() {
    if (++depth_ == 3) Forget();
    return true;
  }
  bool Close() {
    if (depth_-- == 2) in_vocab_ = false;
    return !found;
  }
  void Forget() {
    name_.clear();
    added_id_.reset();
    is_added_ = false;
  }

  const std::string_view content_;
  int depth_ = 0;
  std::string part_;  // the root's member
  std::string name_;
  bool in_vocab_ = false;
  bool is_added_ = false;
  std::optional<int32_t> added_id_;
};

}  // namespace

std::optional<int32_t> FindTokenId(std::string_view tokenizer_json, std::string_view content) {
  TokenFinder finder(content);
  Json::sax_parse(tokenizer_json.begin(), tokenizer_json.end(), &finder);
  return finder.found;
}

std::string Quote(std::string_view text) {
  constexpr size_t kLongest = 60;
  std::string quoted = absl::Utf8SafeCEscape(std::string(text.substr(0, kLongest)));
  absl::StrReplaceAll({{"\\\"", "\""}}, &quoted);
  return absl::StrCat("'", quoted, text.size() > kLongest ? "...'" : "'");
}

absl::StatusOr<TokenizerFile> ReadTokenizerFile(std::string_view text) {
  if (static_cast<int64_t>(text.size()) > kMaxTokenizerFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.json has ", text.size(),
                                                   " bytes, more than ", kMaxTokenizerFileBytes));
  }
  if (IsLfsPointer(text)) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.json ", kLfsPointer));
  }
  Reader reader;
  const bool complete = Json::sax_parse(text.begin(), text.end(), &reader);
  if (complete && !reader.file.rest.is_object()) reader.error = "is no JSON object";
  if (!complete || !reader.error.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.json ", reader.error));
  }
  return std::move(reader.file);
}

}  // namespace lockstep
