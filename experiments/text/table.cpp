#include "experiments/text/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "core/config/config.h"
#include "experiments/files/json_text.h"
#include "experiments/text/csv_line.h"

namespace headlab {
namespace {

// Columns of a terminal that a text takes, with "±" among its letters.
size_t columns_of(const std::string& text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string title_of(const Column& column) {
  if (!column.title.empty()) return column.title;
  return column.name + (column.units == "1" ? "" : fmt::format(" [{}]", column.units));
}

bool is_none(const nlohmann::ordered_json& value) {
  return value.is_null() || (value.is_number_float() && std::isnan(value.get<double>()));
}

}  // namespace

std::string Cell::shown(const Column& column) const {
  if (!shown_.empty()) return shown_;
  if (is_none(value_)) return "-";
  if (value_.is_string()) return value_.get<std::string>();
  if (!value_.is_number_float()) return value_.dump();
  return fmt::format(fmt::runtime(column.format), value_.get<double>());
}

std::string Cell::stored() const {
  if (is_none(value_)) return "";
  if (value_.is_number_float()) return shortest(value_.get<double>());
  return value_.is_string() ? value_.get<std::string>() : json_text(value_);
}

void Table::add(std::vector<Cell> cells) {
  if (cells.size() != columns_.size())
    throw std::logic_error(
        fmt::format("{} cells for {} columns of a table", cells.size(), columns_.size()));
  rows_.push_back(std::move(cells));
}

std::vector<std::vector<std::string>> Table::shown() const {
  std::vector<std::vector<std::string>> lines(rows_.size() + 1);
  for (size_t c = 0; c < columns_.size(); ++c) {
    if (!columns_[c].shown) continue;
    lines[0].push_back(title_of(columns_[c]));
    for (size_t r = 0; r < rows_.size(); ++r)
      lines[r + 1].push_back(rows_[r][c].shown(columns_[c]));
  }
  return lines;
}

std::string Table::text() const {
  const auto lines = shown();
  std::vector<size_t> widths(lines[0].size());
  for (const auto& line : lines)
    for (size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], columns_of(line[c]));
  std::string text;
  for (const auto& line : lines) {
    size_t c = 0;
    for (const auto& column : columns_) {
      if (!column.shown) continue;
      const std::string gap(widths[c] - columns_of(line[c]), ' ');
      text += (c == 0 ? "" : "  ") + (column.is_text ? line[c] + gap : gap + line[c]);
      ++c;
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

std::string Table::markdown() const {
  std::string text, rule = "|";
  for (const auto& column : columns_)
    if (column.shown) rule += column.is_text ? "---|" : "--:|";
  for (const auto& line : shown()) {
    const bool is_head = text.empty();
    text += '|';
    for (const auto& cell : line) {
      text += ' ';
      for (const char c : cell) text += c == '|' ? "\\|" : std::string(1, c);
      text += " |";
    }
    text += '\n' + (is_head ? rule + '\n' : "");
  }
  return text;
}

std::string Table::csv() const {
  const auto line = [&](auto cell_of) {
    std::vector<std::string> cells;
    for (size_t c = 0; c < columns_.size(); ++c)
      if (!columns_[c].name.empty()) cells.push_back(cell_of(c));
    return csv_line(cells);
  };
  auto text = line([&](size_t c) { return columns_[c].name; });
  for (const auto& row : rows_) text += line([&](size_t c) { return row[c].stored(); });
  return text;
}

nlohmann::ordered_json Table::json() const {
  auto all = nlohmann::ordered_json::array();
  for (const auto& row : rows_) {
    auto& object = all.emplace_back(nlohmann::ordered_json::object());
    for (size_t c = 0; c < columns_.size(); ++c)
      if (!columns_[c].name.empty()) object[columns_[c].name] = row[c].value();
  }
  return all;
}

}  // namespace headlab
