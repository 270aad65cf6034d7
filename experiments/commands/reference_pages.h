// The pages of docs/ that the program prints, in Markdown, and its manual page.
#pragma once

#include <string>

namespace headlab {

std::string config_page();    // every section and key of a config
std::string commands_page();  // every command with its options, and the exit codes
std::string kinds_page();   // every kind of heads: paper, equations, options, promises, statistics
std::string kinds_table();  // a row a kind

std::string manual();  // headlab(1), for man, in roff

}  // namespace headlab
