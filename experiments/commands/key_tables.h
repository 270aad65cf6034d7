// The settings of a config as tables, for those who explain them.
#pragma once

#include <string>
#include <vector>

#include "core/config/config.h"
#include "experiments/files/field_table.h"

namespace headlab {

// One mapping that a file may write: what stands at the top, a section, or a kind of a family.
struct KeyTable {
  std::string path = {};                 // "train", "model.attention"; "": the top
  std::string kind = {};                 // whose options these are; "": of no kind
  std::string help = {};                 // of the key at `path`
  std::string within = {};               // the kind that has this key; "": it always exists
  const KindRegistry* family = nullptr;  // that `kind` is of; null: of none that is registered
  std::vector<FieldInfo> fields = {};

  std::string key(const FieldInfo& field) const {
    return path.empty() ? field.name : path + '.' + field.name;
  }
};

// The top first, then its sections in order, each followed by what its keys choose from. A family
// stands where it is met first, once.
std::vector<KeyTable> key_tables(Block& root);

}  // namespace headlab
