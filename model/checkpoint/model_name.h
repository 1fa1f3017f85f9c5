// What a model is called whose directory says nothing but its path.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep {

// The directory's own name, as it was given; of a snapshot in a Hugging Face cache
// (models--OWNER--NAME/snapshots/REVISION, huggingface_hub 1.32) OWNER/NAME.
std::string ModelNameOf(const std::filesystem::path& directory);

}  // namespace lockstep
