#include "experiments/files/cache_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "core/errors.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

fs::path absolute_path_in(const char* variable) {
  const char* value = std::getenv(variable);
  const fs::path path = value == nullptr ? "" : value;
  return path.is_absolute() ? path : fs::path();
}

}  // namespace

fs::path cache_folder() {
  if (const auto cache = absolute_path_in("XDG_CACHE_HOME"); !cache.empty())
    return cache / "headlab";
  const auto home = absolute_path_in("HOME");
  return home.empty() ? home : home / ".cache/headlab";
}

void make_cache_folder(const fs::path& folder) {
  std::error_code none;
  if (fs::is_directory(folder, none)) return;
  if (folder.has_relative_path()) make_cache_folder(folder.parent_path());
  if (::mkdir(folder.c_str(), 0700) == 0) return;
  const int error = errno;
  if (!fs::is_directory(folder, none))  // another process may have made it meanwhile
    throw RunError(fmt::format("{}: cannot be made: {}", folder.string(),
                               std::generic_category().message(error)));
}

}  // namespace headlab
