#include "model/model_family.h"

#include "absl/strings/str_join.h"
#include "kernels/base/check.h"

namespace lockstep {

const FamilyTraits& TraitsOf(ModelFamily family) {
  const FamilyTraits& traits = kModelFamilies.at(static_cast<size_t>(family));
  LS_CHECK(traits.family == family) << traits.name;
  return traits;
}

std::string ModelFamilyNames() {
  return absl::StrJoin(kModelFamilies, ", ", [](std::string* out, const FamilyTraits& traits) {
    out->append(traits.name);
  });
}

}  // namespace lockstep
