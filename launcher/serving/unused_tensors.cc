#include "launcher/serving/unused_tensors.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model/checkpoint/llama_tensors.h"

namespace lockstep {

std::string UnusedTensorsText(const std::vector<std::string>& names) {
  constexpr size_t kMaxShown = 3;
  const size_t num_shown = std::min(names.size(), kMaxShown);
  std::string text =
      absl::StrCat(names.size(), names.size() == 1 ? " tensor" : " tensors", " of the checkpoint ",
                   names.size() == 1 ? "is" : "are", " not used: ");
  for (size_t i = 0; i < num_shown; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", UnknownTensorText(names[i]));
  }
  if (names.size() > num_shown) absl::StrAppend(&text, " and ", names.size() - num_shown, " more");
  return absl::StrCat(text, " (lockstep model inspect names all)");
}

}  // namespace lockstep
