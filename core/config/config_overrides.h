// Settings that are written beside a file, by their paths, and merge over what it says.
#pragma once

#include <string>
#include <vector>

#include "core/config/config.h"

namespace headlab {

// Adds a value at `path`, "a.b.c", to a tree of such settings; `config` is what the tree will be
// merged over. ConfigError at `place` where the path leads through a list or a plain value.
void add_setting(ConfigNode& tree, const ConfigNode& config, const std::string& path,
                 ConfigNode value, const Place& place);

// `config` with overrides `a.b.c=value` over it, as load_config() reads them.
ConfigNode override_config(const ConfigNode& config, const std::vector<std::string>& overrides);

}  // namespace headlab
