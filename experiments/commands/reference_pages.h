// The pages of docs/ that the program prints, in Markdown.
#pragma once

#include <string>
#include <vector>

#include "experiments/files/field_table.h"
#include "experiments/text/table.h"

namespace headlab {

std::string config_page();    // every section and key of a config
std::string commands_page();  // every command with its options, and the exit codes
std::string kinds_page();   // every kind of heads: paper, equations, options, promises, statistics
std::string kinds_table();  // a row a kind

std::string field_table(const std::vector<FieldInfo>& fields);
Table table_of_texts(const std::vector<std::string>& titles);
std::string code(const std::string& text);  // `text`; "" of nothing
// Text of a cell: code where it is not empty, with the bars of alternatives as commas.
std::string cell(const std::string& text);

}  // namespace headlab
