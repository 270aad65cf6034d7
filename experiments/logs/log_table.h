// One group of records in the file. Rows wait in memory, are written together, and count from the
// moment their key is written after them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "experiments/files/h5.h"
#include "experiments/logs/log_schema.h"

namespace headlab {

// Makes the group with its axes, constants and empty columns, all described.
void make_log_group(H5Group& root, const LogGroup& group);

// Sets the attributes of a file's root: schema, title, run, status.
void describe_file(H5Group& root, const RootAttributes& attributes, const std::string& status);

class LogTable {
 public:
  // Opens a group. RunError where it is not what `group` says.
  LogTable(const H5Group& root, const LogGroup& group);

  // row: the columns' values one after the other, LogGroup::row_bytes() in all.
  void add(int64_t key, std::span<const std::byte> row);
  bool waiting() const { return !keys_.empty(); }
  bool fills_chunk() const { return (rows_ + keys_.size()) % chunk_rows_ == 0; }
  void write_rows();  // all but the keys
  void write_keys();  // after the rows have been flushed

  hsize_t rows() const { return rows_; }  // complete records
  std::optional<int64_t> last_key() const;
  // Complete records of what is one number a row, by column; those of the key under its own name.
  std::map<std::string, std::vector<double>> numbers() const;
  void truncate(hsize_t rows);
  void truncate_after(int64_t key);

  // Attention maps: the first step that was left out because they had become too large; -1: none.
  int64_t skipped_from() const;
  void set_skipped_from(int64_t step);

 private:
  struct Column {
    std::string name;
    H5Dataset data;
    H5Type type;
    size_t bytes;                    // of a row
    std::vector<std::byte> waiting;  // rows
  };
  std::vector<Column> columns_;
  std::string key_name_;
  H5Dataset key_, skipped_from_;
  std::vector<int64_t> keys_;
  hsize_t rows_ = 0, chunk_rows_ = 1;
};

}  // namespace headlab
