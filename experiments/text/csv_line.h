// A line of a CSV file (RFC 4180).
#pragma once

#include <string>
#include <vector>

namespace headlab {

// Cells with commas between, those in quotes that need them, and a line feed.
inline std::string csv_line(const std::vector<std::string>& cells) {
  std::string line;
  for (const auto& cell : cells) {
    if (&cell != &cells.front()) line += ',';
    if (cell.find_first_of(",\"\n\r") == cell.npos) {
      line += cell;
      continue;
    }
    line += '"';
    for (const char c : cell) line += c == '"' ? "\"\"" : std::string(1, c);
    line += '"';
  }
  return line + '\n';
}

}  // namespace headlab
