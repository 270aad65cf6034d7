#include "experiments/pretrained/import_notices.h"

#include "experiments/files/json_text.h"
#include "experiments/files/mapped_file.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// An empty object where the file is not there, or is none.
json object_of(const fs::path& path) {
  std::error_code none;
  if (!fs::is_regular_file(path, none)) return json::object();
  auto read = parse_json(MappedFile(path).text()).value_or(json::object());
  return read.is_object() ? read : json::object();
}

}  // namespace

std::vector<std::string> notices_of_folder(const fs::path& folder,
                                           const HuggingFaceSettings& settings) {
  std::vector<std::string> notices;
  if (settings.model_type() == "vit") {
    const auto images = object_of(folder / "preprocessor_config.json");
    if (images.contains("image_mean") && images.contains("image_std"))
      notices.push_back(fmt::format(
          "preprocessor_config.json is left out: its image_mean {} and image_std {} go into `mean` "
          "and `std` of the data",
          images["image_mean"].dump(), images["image_std"].dump()));
  }
  if (settings.model_type() == "bert") {
    const auto pooling = object_of(folder / "1_Pooling" / "config.json");
    for (const auto& [key, value] : pooling.items())
      if (key.starts_with("pooling_mode_") && key != "pooling_mode_mean_tokens" && value == true)
        notices.push_back(
            fmt::format("1_Pooling/config.json is left out: it has {}, an embedding here is the "
                        "mean of all tokens",
                        key));
  }
  return notices;
}

}  // namespace headlab
