// The files that come with the program: configs with their data, and scripts/data. Where it was
// installed as a part of Python's package they are in share/ beside its bin/; else in the tree it
// was built in.
#pragma once

#include <filesystem>
#include <string>

namespace headlab {

// Whether the program was installed: then there are no sources, and no scripts/ but data.
bool is_installed();
// The folder that holds configs/.
std::filesystem::path own_folder();
// The config that a command was given: a file, or the name of one of headlab's own, such as
// char_mha. ConfigError: no such file, and one of headlab's own has its name.
std::filesystem::path named_config(const std::string& word);

}  // namespace headlab
