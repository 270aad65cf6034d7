// A folder for files that nobody is to find.
#pragma once

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "core/errors.h"

namespace headlab {

// Lies where the system keeps temporary files and goes with all that is in it. RunError: it cannot
// be made.
class ScratchFolder {
 public:
  ScratchFolder() {
    auto name = (std::filesystem::temp_directory_path() / "headlab-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr)
      throw RunError(name + ": cannot be made: " + std::generic_category().message(errno));
    path_ = name;
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code none;
    std::filesystem::remove_all(path_, none);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace headlab
