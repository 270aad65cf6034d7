// The fields of a block as a table, for those who write and describe them, and its keys.
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

// "a, b or c", where `last` is "or".
std::string enumerated(const std::vector<std::string>& words, const std::string& last);

// Sizes are multiplied with each other, and must not overflow.
inline constexpr int64_t kLargestInteger = 2147483647;
// With the bounds of an integer that has none of its own.
Limits integer_limits(Limits limits);

// Where a file may write a key, "model.attention.bias", and the kinds that have it; empty: all.
struct KeyPath {
  std::string path;
  std::vector<std::string> kinds;
};
std::vector<KeyPath> key_paths(Block& root);

// What an unknown key of the block at this path was meant to be, as "; did you mean 'x'?": a key
// near it of this block, the same or another tool's word for one of `root` (null: nothing is known
// of it), or what is known here.
std::string meant_instead(const std::string& key, const std::string& block,
                          const std::vector<std::string>& known, Block* root);

}  // namespace headlab
