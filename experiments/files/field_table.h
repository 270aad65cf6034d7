// The settings of a block as a table, for those who list them.
#pragma once

#include <string>
#include <vector>

#include "core/config/config.h"

namespace headlab {

// A field of a nested block is named `block.field`. An absent value has an empty default_text.
struct FieldInfo {
  std::string name, type, default_text, limits, help;
};
std::vector<FieldInfo> describe_block(Block& block);

}  // namespace headlab
