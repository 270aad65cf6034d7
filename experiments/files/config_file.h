// Configuration files: what they extend, and settings beside a file that merge over what it says.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/config/config.h"

namespace headlab {

// Reads a file, its `extends: parent.yaml` (relative to it; cycles are an error), then the
// overrides `a.b.c=value` (value in YAML flow style; paths from the caller's directory). Mappings
// merge key by key, except that a mapping whose `kind` changes replaces the old one; everything
// else replaces. Overrides merge among themselves first, so that their order does not matter unless
// they name the same key.
ConfigNode load_config(const std::filesystem::path& file,
                       const std::vector<std::string>& overrides = {});
ConfigNode merge_config(const ConfigNode& base, const ConfigNode& over);

// Adds a value at `path`, "a.b.c", to a tree of settings; `config` is what the tree will be merged
// over. ConfigError at `place` where the path leads through a list or a plain value.
void add_setting(ConfigNode& tree, const ConfigNode& config, const std::string& path,
                 ConfigNode value, const Place& place);

// `config` with overrides `a.b.c=value` over it, as load_config() reads them.
ConfigNode override_config(const ConfigNode& config, const std::vector<std::string>& overrides);

}  // namespace headlab
