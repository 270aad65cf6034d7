#include "experiments/logs/log_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <system_error>

#include "core/errors.h"
#include "experiments/files/replacement_file.h"
#include "experiments/logs/log_repair.h"
#include "experiments/logs/log_walk.h"

namespace headlab {
namespace {

void make_vocabulary(H5Group& root, const std::string& name,
                     const std::vector<std::string>& vocabulary) {
  if (vocabulary.empty()) return;
  std::vector<std::string> texts;
  for (const std::string& token : vocabulary) texts.push_back(readable_text(token));
  const LabelledAxis tokens{{"token", "1", "token", "number of an entry of the vocabulary"},
                            std::ssize(texts)};
  const LabelledArray text{
      .about = {"text", "1", "text of a token", "bytes that are no UTF-8 are written <0xHH>"},
      .dims = {"token"},
      .values = {},
      .texts = texts};
  H5Group group = root.make_group(name);
  write_arrays(group, {name, {tokens}, {text}}, H5Type::kI32);
}

void make_log(const std::filesystem::path& path, const LogLayout& layout,
              const std::vector<LogGroup>& groups) {
  H5File file = H5File::create(path);
  H5Group root = file.root();
  describe_file(root, layout, "running");
  for (const LogGroup& group : groups) make_log_group(root, group);
  for (const auto& [name, texts] : layout.vocabularies) make_vocabulary(root, name, texts);
  file.sync();
  file.close();
}

}  // namespace

LogFile::LogFile(std::filesystem::path path, std::vector<LogGroup> groups,
                 const RunLogOptions& options)
    : path_(std::move(path)), groups_(std::move(groups)), options_(options), swmr_(options.swmr) {}

void LogFile::create(const LogLayout& layout) {
  // It appears under its name only when it is complete: a log is never half made.
  const std::filesystem::path fresh = path_.string() + ".new";
  std::error_code failed;
  std::filesystem::remove(fresh, failed);  // left by a killed process, or a link of someone's
  make_log(fresh, layout, groups_);
  std::filesystem::rename(fresh, path_, failed);
  if (failed) throw RunError(path_.string() + ": cannot be made: " + failed.message());
  sync_directory(path_.parent_path());
  open();
  start();
}

void LogFile::resume(const LogLayout& layout, int64_t step, double wall_time) {
  if (!options_.repaired) repair_held_log(path_);
  file_ = H5File::edit_unlocked(path_);
  require_log_schema(file_->root());
  if (const std::string run_id = file_->root().text("run_id"); run_id != layout.run_id) {
    throw RunError(path_.string() + ": is the log of run " + run_id + ", not of " + layout.run_id);
  }
  open();
  for (size_t g = 0; g + 1 < groups_.size(); ++g) {
    tables_[g].truncate_after(step);
    if (groups_[g].maps() && tables_[g].skipped_from() > step) tables_[g].set_skipped_from(-1);
  }
  LogTable& resumes = tables_.back();
  resumes.truncate(resumes.rows());
  struct {
    int64_t step;
    double wall_time;
  } const row = {step, wall_time};
  resumes.add(static_cast<int64_t>(resumes.rows()), std::as_bytes(std::span(&row, 1)));
  commit();
  file_->root().set_text("status", "running");
  file_->sync();
  start();
}

// Readers hold HDF5's own lock, and a run must not stop because someone looks at its log; other
// writers are kept out by the WriterLock.
void LogFile::open() {
  if (!file_) file_ = H5File::edit_unlocked(path_);
  const H5Group root = file_->root();
  for (const LogGroup& group : groups_) tables_.emplace_back(root, group);
}

// A log that nobody can read along is no reason not to train.
void LogFile::start() {
  started_ = true;
  if (!swmr_) return;
  try {
    file_->start_swmr();
  } catch (const RunError& error) {
    swmr_ = false;
    refusal_ = error.what();
    tables_.clear();
    file_->close();  // with whatever SWMR state it was left in
    file_.reset();
    open();
  }
}

std::string LogFile::swmr_notice() const {
  if (swmr_) return "";
  const std::string why = refusal_.empty() ? "log.swmr is false" : refusal_;
  return why +
         ": log.h5 cannot be read while the run writes it, and a kill loses the rows since the "
         "last checkpoint";
}

void LogFile::add(size_t group, int64_t key, std::span<const std::byte> row) {
  if (uncommitted_++ == 0) oldest_ = Clock::now();
  LogTable& table = tables_[group];
  table.add(key, row);
  if (groups_[group].maps()) table.write_rows();  // too large to wait in memory
  if (swmr_) {
    if (uncommitted_ >= options_.flush_every) commit();
  } else if (table.fills_chunk()) {
    commit({&table, 1});
  }
}

std::optional<LogFile::Clock::time_point> LogFile::deadline() const {
  if (!swmr_ || uncommitted_ == 0) return std::nullopt;
  return oldest_ + std::chrono::duration_cast<Clock::duration>(
                       std::chrono::duration<double>(options_.flush_seconds));
}

void LogFile::commit() {
  commit(tables_);
  uncommitted_ = 0;
}

// The keys follow in a flush of their own: whenever a key is in the file, its row is.
void LogFile::commit(std::span<LogTable> tables) {
  bool any = false;
  for (LogTable& table : tables) {
    any = any || table.waiting();
    table.write_rows();
  }
  if (!any) return;
  file_->flush();
  for (LogTable& table : tables) table.write_keys();
  file_->flush();
}

void LogFile::sync() {
  commit();
  file_->sync();
}

void LogFile::close(const std::string& status) {
  commit();
  tables_.clear();
  file_->close();  // attributes cannot be changed under SWMR
  file_ = H5File::edit_unlocked(path_);
  file_->root().set_text("status", status);
  file_->sync();
  file_->close();
  file_.reset();
}

void LogFile::abandon() noexcept {
  if (file_ && started_) file_->abandon();
  tables_.clear();
  file_.reset();
}

}  // namespace headlab
