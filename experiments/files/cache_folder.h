// The folder of what the program keeps and can make again at any time.
#pragma once

#include <filesystem>

namespace headlab {

// $XDG_CACHE_HOME/headlab, else $HOME/.cache/headlab (XDG Base Directory Specification 0.8, which
// passes over relative paths). "" where neither variable names an absolute path.
std::filesystem::path cache_folder();

// Makes a folder with those above it, for this user alone, as that specification has it; one that
// is there stays as it is. RunError `path: cannot be made: reason`.
void make_cache_folder(const std::filesystem::path& folder);

}  // namespace headlab
