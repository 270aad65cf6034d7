#include "experiments/system/own_files.h"

#include <fmt/format.h>

#include "core/config/config.h"
#include "headlab_build.h"

namespace headlab {
namespace fs = std::filesystem;

namespace {

// Empty: the program was not installed.
fs::path installed_folder() {
  std::error_code none;
  const auto program = fs::read_symlink("/proc/self/exe", none);
  const auto share = program.parent_path().parent_path() / "share";
  return fs::is_directory(share / "configs", none) ? share : fs::path();
}

}  // namespace

bool is_installed() { return !installed_folder().empty(); }

fs::path own_folder() {
  const auto installed = installed_folder();
  return installed.empty() ? fs::path(build::kSourceDir) : installed;
}

fs::path named_config(const std::string& word) {
  std::error_code none;
  const fs::path path = word;
  if (word.empty() || fs::exists(path, none)) return path;
  const bool is_name = !path.has_parent_path() && !path.has_extension();
  const auto own = own_folder() / "configs" / path.stem().concat(".yaml");
  if (!fs::is_regular_file(own, none)) return path;
  if (is_name) return own;
  throw ConfigError(fmt::format(
      "{}: there is no such file; '{}', without folder and ending, is the config of headlab's own",
      word, path.stem().string()));
}

}  // namespace headlab
