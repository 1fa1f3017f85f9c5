#include "model/model_family.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace lockstep {

const FamilyTraits& TraitsOf(ModelFamily family) {
  const FamilyTraits& traits = kModelFamilies.at(static_cast<size_t>(family));
  LS_CHECK(traits.family == family) << traits.name;
  return traits;
}

const FamilyTraits* TraitsOfType(std::string_view model_type) {
  const auto found =
      std::find_if(kModelFamilies.begin(), kModelFamilies.end(),
                   [&](const FamilyTraits& traits) { return traits.model_type == model_type; });
  return found == kModelFamilies.end() ? nullptr : &*found;
}

}  // namespace lockstep
