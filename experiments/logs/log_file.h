// A log as its writing thread has it: made or taken up again, rows committed in batches, closed.
// Every call but the constructor's belongs to one thread.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "experiments/files/h5.h"
#include "experiments/logs/log_schema.h"
#include "experiments/logs/log_table.h"

namespace headlab {

class LogFile {
 public:
  using Clock = std::chrono::steady_clock;
  LogFile(std::filesystem::path path, std::vector<LogGroup> groups, const RunLogOptions& options);

  void create(const LogLayout& layout);
  // Repairs what a dead writer left, drops the records after `step`, notes the resume.
  void resume(const LogLayout& layout, int64_t step, double wall_time);

  void add(size_t group, int64_t key, std::span<const std::byte> row);
  void set_skipped_from(size_t group, int64_t step) { tables_[group].set_skipped_from(step); }
  const LogTable& table(size_t group) const { return tables_[group]; }

  // What people should know who wanted to read along: empty under SWMR.
  std::string swmr_notice() const;

  std::optional<Clock::time_point> deadline() const;  // of the next commit
  void commit();                                      // every row is in the file and counts
  void sync();                                        // and on the disk
  void close(const std::string& status);
  // Lets go of a file that is still open after an error: it is left as a kill would leave it.
  void abandon() noexcept;

 private:
  void open();
  void start();
  void commit(std::span<LogTable> tables);

  std::filesystem::path path_;
  std::vector<LogGroup> groups_;
  RunLogOptions options_;
  std::optional<H5File> file_;
  std::vector<LogTable> tables_;
  bool started_ = false;  // rows may be written
  bool swmr_;
  std::string refusal_;  // why there is no SWMR though it was wanted
  int64_t uncommitted_ = 0;
  Clock::time_point oldest_;  // of the uncommitted
};

}  // namespace headlab
