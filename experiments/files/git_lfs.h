// Pointers of Git LFS: texts of a few lines that stand where a clone did not fetch the files
// themselves.
#pragma once

#include <string_view>

namespace headlab {

// What to say of a file with this text; "" where it is no pointer.
inline std::string_view git_lfs_complaint(std::string_view text) {
  constexpr size_t kLongest = 1024;  // of a pointer, git-lfs/docs/spec.md
  if (text.size() >= kLongest) return "";
  for (const std::string_view version :
       {"https://git-lfs.github.com/spec/v", "https://hawser.github.com/spec/v",
        "http://git-media.io/v/"})
    if (text.starts_with("version ") && text.substr(8).starts_with(version))
      return "is a pointer of Git LFS, not the file itself; `git lfs pull`, run in its repository, "
             "fetches the file";
  return "";
}

}  // namespace headlab
