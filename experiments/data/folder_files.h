// Data that lie in a folder of several files.
#pragma once

#include <filesystem>
#include <vector>

namespace headlab {

// Options with a path of a folder say which files in it are read. Those that are not there are left
// out.
struct ReadsFolder {
  virtual ~ReadsFolder() = default;
  virtual std::vector<std::filesystem::path> files_in(
      const std::filesystem::path& folder) const = 0;
};

// Of these names, those that the folder has.
inline std::vector<std::filesystem::path> files_of_names(const std::filesystem::path& folder,
                                                         const std::vector<const char*>& names) {
  std::vector<std::filesystem::path> files;
  std::error_code none;
  for (const char* name : names)
    if (std::filesystem::exists(folder / name, none)) files.push_back(folder / name);
  return files;
}

}  // namespace headlab
