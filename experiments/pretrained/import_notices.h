// What stands beside published weights and has no place in a run.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "experiments/pretrained/hugging_face_settings.h"

namespace headlab {

// A sentence on each: the scale of images (preprocessor_config.json), another pooling of sentences
// than the mean (modules.json of sentence-transformers). Files that are no such JSON say nothing.
std::vector<std::string> notices_of_folder(const std::filesystem::path& folder,
                                           const HuggingFaceSettings& settings);

}  // namespace headlab
