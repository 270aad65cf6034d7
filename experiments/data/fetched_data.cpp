#include "experiments/data/fetched_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/errors.h"
#include "experiments/system/own_files.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

// The names that scripts/data knows.
constexpr std::array kFetched{"cifar10", "minilm", "multi30k", "smollm2"};

// "multi30k" of DIR/configs/data/multi30k/train.de; "" of any other path.
std::string fetched_name(const fs::path& path) {
  for (auto folder = path.parent_path(); folder.has_relative_path(); folder = folder.parent_path())
    if (folder.parent_path().filename() == "data" &&
        folder.parent_path().parent_path().filename() == "configs" &&
        std::find(kFetched.begin(), kFetched.end(), folder.filename()) != kFetched.end())
      return folder.filename();
  return "";
}

}  // namespace

void require_fetched(const ConfigNode& options) {
  for (const auto& [key, value] : options.entries) require_fetched(value);
  for (const auto& value : options.items) require_fetched(value);
  if (!options.absolute.empty()) require_fetched(fs::path(options.absolute));
}

void require_fetched(const fs::path& path) {
  if (fs::exists(path)) return;
  const auto name = fetched_name(fs::absolute(path).lexically_normal() / "");
  if (!name.empty())
    throw DataError(fmt::format("{}: is not there; {}scripts/data {} puts it there", path.string(),
                                is_installed() ? own_folder().string() + "/" : "", name));
}

}  // namespace headlab
