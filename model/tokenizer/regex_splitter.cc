#include "model/tokenizer/regex_splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "model/tokenizer/tokenizer_file.h"
#include "model/tokenizer/utf8.h"

namespace lockstep {
namespace {

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* handle) const {
    Free(handle);
  }
};
using CodeHandle = std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>>;

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof(buffer)) < 0)
    return absl::StrCat("error ", code);
  return reinterpret_cast<const char*>(buffer);
}

// Of the interpreter, where alternatives are left behind at every character.
constexpr uint32_t kMaxHeapKiB = 256 << 10;

struct Range {
  size_t start;
  size_t end;
};

// One thread's matching state over one text.
class Matcher {
 public:
  Matcher(const pcre2_code* code, std::string_view text)
      : code_(code),
        text_(text),
        data_(pcre2_match_data_create_from_pattern(code, nullptr)),
        context_(pcre2_match_context_create(nullptr)) {
    LS_CHECK(data_ != nullptr && context_ != nullptr) << "out of memory";
    // PCRE2's fixed default limit would fail on long runs, where `\s+(?!\S)` takes one step per
    // character. Sixteen per byte leave ample room and keep the time linear.
    const uint64_t steps = 10'000'000 + 16 * uint64_t{text.size()};
    pcre2_set_match_limit(context_.get(),
                          static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
    pcre2_set_depth_limit(context_.get(), UINT32_MAX);
    pcre2_set_heap_limit(context_.get(), kMaxHeapKiB);
  }

  // The next match at or after `start`; {npos, npos} if there is none.
  absl::StatusOr<Range> Next(size_t start) {
    int count = Run(start, PCRE2_NO_UTF_CHECK);
    // The compiled matcher's stack is small and fixed; the interpreter's lies on the heap.
    if (count == PCRE2_ERROR_JIT_STACKLIMIT) count = Run(start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT);
    if (count == PCRE2_ERROR_NOMATCH) return Range{std::string_view::npos, std::string_view::npos};
    if (count < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the tokenizer's regular expression gave up at byte ", start, " of ",
                       text_.size(), ": ", ErrorText(count)));
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data_.get());
    return Range{ends[0], ends[1]};
  }

 private:
  // The text is known to be valid: PCRE2's own check would walk all of it at every match.
  int Run(size_t start, uint32_t options) {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), start,
                       options, data_.get(), context_.get());
  }

  const pcre2_code* code_;
  std::string_view text_;
  MatchData data_;
  MatchContext context_;
};

}  // namespace

struct RegexSplitter::Code {
  CodeHandle handle;
};

RegexSplitter::RegexSplitter(std::unique_ptr<Code> code) : code_(std::move(code)) {}
RegexSplitter::RegexSplitter(RegexSplitter&&) noexcept = default;
RegexSplitter& RegexSplitter::operator=(RegexSplitter&&) noexcept = default;
RegexSplitter::~RegexSplitter() = default;

absl::StatusOr<RegexSplitter> RegexSplitter::Compile(std::string_view pattern) {
  ASSIGN_OR_RETURN(const std::string translated, TranslatePattern(pattern));
  const CompileContext context(pcre2_compile_context_create(nullptr));
  LS_CHECK(context != nullptr) << "out of memory";
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  // MULTILINE: in the files' dialect ^ and $ are a line's ends.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE;
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_unique<Code>();
  code->handle.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                                   translated.size(), options, &error, &offset, context.get()));
  if (code->handle == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("regular expression ", Quote(pattern), ": ", ErrorText(error)));
  }
  // Without executable memory this fails, and matching is interpreted: slower, the same result.
  (void)pcre2_jit_compile(code->handle.get(), PCRE2_JIT_COMPLETE);
  return RegexSplitter(std::move(code));
}

absl::Status RegexSplitter::Split(std::string_view text, PieceSink sink) const {
  Matcher matcher(code_->handle.get(), text);
  size_t emitted = 0;  // text before this is out
  size_t search = 0;
  while (search < text.size()) {
    ASSIGN_OR_RETURN(const Range match, matcher.Next(search));
    if (match.start >= text.size()) break;
    if (match.start > emitted) {
      RETURN_IF_ERROR(sink(text.substr(emitted, match.start - emitted)));
    }
    emitted = match.start;
    search = match.end;
    if (match.end > match.start) {
      RETURN_IF_ERROR(sink(text.substr(match.start, match.end - match.start)));
      emitted = match.end;
    } else {  // an empty match only cuts; go on behind the next character
      search += NextUtf8Unit(text.substr(search)).num_bytes;
    }
  }
  return emitted < text.size() ? sink(text.substr(emitted)) : absl::OkStatus();
}

}  // namespace lockstep
