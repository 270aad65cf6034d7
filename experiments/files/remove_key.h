// A mapping of a config without one of its keys.
#pragma once

#include <string_view>
#include <vector>

#include "core/config/config.h"

namespace headlab {

inline void remove_key(ConfigNode& mapping, std::string_view key) {
  std::erase_if(mapping.entries, [&](const auto& entry) { return entry.first == key; });
}

}  // namespace headlab
