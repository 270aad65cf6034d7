// A folder that is made whole or not at all.
#pragma once

#include <filesystem>

namespace headlab {

// Takes a file, or a folder with all in it, away at the end of a scope; errors are none.
class Removal {
 public:
  explicit Removal(std::filesystem::path path);
  Removal(const Removal&) = delete;
  Removal& operator=(const Removal&) = delete;
  ~Removal();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// A new folder under a temporary name beside `path`, which takes the place of `path` on commit()
// and vanishes otherwise. Nobody makes it but its user; one that a killed process left may be
// there.
class NewFolder {
 public:
  explicit NewFolder(const std::filesystem::path& path);

  const std::filesystem::path& making() const { return making_.path(); }
  void commit() const;  // RunError `path: cannot be made: reason`

 private:
  std::filesystem::path path_, target_;
  Removal making_;
};

}  // namespace headlab
