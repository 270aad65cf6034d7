// What `headlab describe WORD` says of a config: a section, a kind of data, of models or of heads,
// a key.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/commands/key_tables.h"

namespace headlab {

std::vector<KeyTable> experiment_tables();

// What the kind of this table is, in a line; "" for a table of no registered kind.
std::string summary_of(const KeyTable& table);
// "train", "data.kind: char", "model.attention.overlap, of mohsa"
std::string title_of(const KeyTable& table);

// The tables that are called so; else one with the keys that are; empty: there are none.
std::vector<KeyTable> tables_called(const std::string& word);
std::vector<std::string> words();  // everything but single keys

std::string text_of(const std::vector<FieldInfo>& fields);  // two lines a field
std::string text_of(const std::vector<KeyTable>& tables);
nlohmann::ordered_json json_of(const std::vector<FieldInfo>& fields);
nlohmann::ordered_json json_of(const std::vector<KeyTable>& tables);

std::string list_of_words();  // what describe says without a word

}  // namespace headlab
