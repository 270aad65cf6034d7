// The fields of a block as a table, for those who write and describe them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/config/config.h"

namespace headlab {

// One field as it stands. `type` is the word for one item; block and custom are set for those.
struct BlockField {
  std::string name, help, type;
  bool list = false;
  Limits limits;
  std::optional<ConfigNode> value = std::nullopt;  // absent: an empty optional, a path not set
  Block* block = nullptr;
  CustomField* custom = nullptr;
};

std::vector<BlockField> fields_of(Block& block);

}  // namespace headlab
