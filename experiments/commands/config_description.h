// The settings of a config as tables, and what `headlab describe WORD` means of them: a section, a
// kind of data, of models or of heads, a key.
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

// Of an experiment: the top first, then its sections in order, each followed by what its keys
// choose from. A family stands where it is met first, once.
std::vector<KeyTable> experiment_tables();

// What the kind of this table is, in a line; "" for a table of no registered kind.
std::string summary_of(const KeyTable& table);
// "train", "data.kind: char", "model.attention.overlap, of mohsa"
std::string title_of(const KeyTable& table);

// The tables that are called so; else one with the keys that are; empty: there are none.
std::vector<KeyTable> tables_called(const std::string& word);
std::vector<std::string> words();  // everything but single keys

}  // namespace headlab
