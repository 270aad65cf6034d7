// A table, and the four ways in which it is written: for a terminal, Markdown, CSV and JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace headlab {

struct Column {
  std::string name = {};   // in CSV and JSON; "": it stands in neither
  std::string title = {};  // for people; "": the name, with the unit
  std::string units = "1";
  std::string format = "{:.4f}";  // of a double for people, as fmt reads it
  bool is_text = false;           // aligned left
  bool shown = true;              // false: it stands in CSV and JSON alone
};

// What stands in one place. NaN and nothing at all are "-" for people, and empty in CSV.
class Cell {
 public:
  Cell() = default;
  Cell(double number) : value_(number) {}              // NOLINT(google-explicit-constructor)
  Cell(int64_t number) : value_(number) {}             // NOLINT(google-explicit-constructor)
  Cell(std::string text) : value_(std::move(text)) {}  // NOLINT(google-explicit-constructor)
  Cell(const char* text) : value_(text) {}             // NOLINT(google-explicit-constructor)
  // For people another text than for files.
  Cell(std::string shown, nlohmann::ordered_json value)
      : shown_(std::move(shown)), value_(std::move(value)) {}

  std::string shown(const Column& column) const;
  std::string stored() const;  // in CSV
  const nlohmann::ordered_json& value() const { return value_; }

 private:
  std::string shown_;
  nlohmann::ordered_json value_;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // std::logic_error where there are not as many cells as columns.
  void add(std::vector<Cell> cells);
  bool empty() const { return rows_.empty(); }

  std::string text() const;             // columns two spaces apart
  std::string markdown() const;         // "|" in a cell is written "\|"
  std::string csv() const;              // RFC 4180, numbers with all their digits
  nlohmann::ordered_json json() const;  // an object a row

 private:
  std::vector<std::vector<std::string>> shown() const;  // titles, then rows

  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace headlab
