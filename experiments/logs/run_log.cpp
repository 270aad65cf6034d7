#include "experiments/logs/run_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "experiments/logs/log_file.h"
#include "experiments/logs/log_row.h"
#include "experiments/system/task_thread.h"
#include "experiments/system/writer_lock.h"

namespace headlab {
namespace {

using Bytes = std::vector<std::byte>;

const char* word(LogStatus status) {
  switch (status) {
    case LogStatus::kFinished:
      return "finished";
    case LogStatus::kStopped:
      return "stopped";
    case LogStatus::kFailed:
      return "failed";
  }
  throw std::logic_error("no such log status");
}

}  // namespace

class RunLog::Writer {
 public:
  Writer(const std::filesystem::path& path, const LogLayout& layout, const RunLogOptions& options)
      : layout_(layout),
        options_(options),
        groups_(log_groups(layout)),
        lock_(std::in_place, path),
        file_(path, groups_, options),
        thread_("log_writer", {},
                {[this] { return file_.deadline(); }, [this] { file_.commit(); },
                 [this] { file_.abandon(); }}) {
    last_steps_.resize(groups_.size());
    for (size_t g = 0; g < groups_.size(); ++g) {
      shapes_.emplace_back(groups_[g]);
      numbers_[groups_[g].path] = g;
    }
  }

  // Calls are answered in the writing thread, rows are written there some time later.
  void call(const std::function<void(LogFile&)>& task) {
    if (closed_) throw std::logic_error("the log is closed");
    thread_.call([&] { task(file_); });
  }
  void push(size_t group, int64_t step, Bytes row) {
    const size_t size = row.size();
    last_steps_[group] = step;
    if (groups_[group].maps()) map_bytes_ += static_cast<int64_t>(size);
    post([group, step, row = std::move(row)](LogFile& file) { file.add(group, step, row); }, size);
  }
  void post(std::function<void(LogFile&)> task, size_t bytes = 0) {
    if (closed_) throw std::logic_error("the log is closed");
    thread_.push([this, task = std::move(task)] { task(file_); }, bytes);
  }

  // Makes the log or takes it up.
  void begin(const std::function<void(LogFile&)>& task) {
    call([&](LogFile& file) {
      task(file);
      const std::string notice = file.swmr_notice();
      if (!notice.empty()) notices_.push_back(notice);
    });
  }
  std::vector<std::string> take_notices() { return std::exchange(notices_, {}); }

  // Takes up the steps and sizes of what is in the file already.
  void take_up() {
    call([this](LogFile& file) {
      for (size_t g = 0; g + 1 < groups_.size(); ++g) {
        const LogTable& table = file.table(g);
        last_steps_[g] = table.last_key();
        if (!groups_[g].maps()) continue;
        map_bytes_ += static_cast<int64_t>(table.rows() * groups_[g].row_bytes());
        maps_stopped_ = maps_stopped_ || table.skipped_from() >= 0;
      }
    });
  }

  void close(LogStatus status) {
    if (closed_) throw std::logic_error("the log is closed");
    closed_ = true;
    thread_.call([&] { file_.close(word(status)); });
    lock_.reset();
  }
  bool closed() const { return closed_; }

  // A row of missing values for the next step.
  Bytes next(size_t group, int64_t step) const {
    if (last_steps_[group] && step <= *last_steps_[group]) {
      throw std::invalid_argument(fmt::format("/{}: step {} after step {}", groups_[group].path,
                                              step, *last_steps_[group]));
    }
    return shapes_[group].missing();
  }

  // Whether one more snapshot fits; once one does not, none does.
  bool room_for_maps(size_t group, int64_t step) {
    const int64_t bytes = static_cast<int64_t>(groups_[group].row_bytes());
    if (!maps_stopped_ && map_bytes_ + bytes > options_.max_bytes) {
      maps_stopped_ = true;
      notices_.push_back(
          fmt::format("attention maps end at step {}: log.attention.max_bytes, {}, is reached",
                      step, options_.max_bytes));
    }
    if (maps_stopped_ && std::find(said_.begin(), said_.end(), group) == said_.end()) {
      said_.push_back(group);
      post([group, step](LogFile& file) {
        if (file.table(group).skipped_from() < 0) file.set_skipped_from(group, step);
      });
    }
    return !maps_stopped_;
  }

  size_t number(const std::string& path) const {
    const auto at = numbers_.find(path);
    if (at == numbers_.end()) throw std::invalid_argument("the log has no group /" + path);
    return at->second;
  }
  const LogRowShape& shape(size_t group) const { return shapes_[group]; }
  const LogSite& site(const std::string& name) const {
    for (const LogSite& site : layout_.sites) {
      if (site.name == name) return site;
    }
    throw std::invalid_argument("the log has no site " + name);
  }

 private:
  const LogLayout layout_;
  const RunLogOptions options_;
  const std::vector<LogGroup> groups_;
  std::vector<LogRowShape> shapes_;
  std::vector<std::optional<int64_t>> last_steps_;
  std::map<std::string, size_t> numbers_;  // of a group by its path
  int64_t map_bytes_ = 0;
  bool maps_stopped_ = false, closed_ = false;
  std::vector<size_t> said_;  // groups whose skipped_from has been written
  std::vector<std::string> notices_;
  std::optional<WriterLock> lock_;
  LogFile file_;
  TaskThread thread_;  // the last: it uses the others
};

RunLog::RunLog(std::unique_ptr<Writer> writer) : writer_(std::move(writer)) {}
RunLog::RunLog(RunLog&&) noexcept = default;

RunLog::~RunLog() {
  if (!writer_ || writer_->closed()) return;
  try {
    close(LogStatus::kFailed);
  } catch (const std::exception&) {
    // The error that ended the run is already under way, and a destructor cannot add to it.
  }
}

RunLog RunLog::create(const std::filesystem::path& path, const LogLayout& layout,
                      const RunLogOptions& options) {
  auto writer = std::make_unique<Writer>(path, layout, options);
  writer->begin([&](LogFile& file) { file.create(layout); });
  return RunLog(std::move(writer));
}

RunLog RunLog::resume(const std::filesystem::path& path, const LogLayout& layout, int64_t step,
                      double wall_time, const RunLogOptions& options) {
  auto writer = std::make_unique<Writer>(path, layout, options);
  writer->begin([&](LogFile& file) { file.resume(layout, step, wall_time); });
  writer->take_up();
  return RunLog(std::move(writer));
}

void RunLog::scalars(int64_t step, double wall_time, int64_t tokens, const Values& values) {
  const size_t group = writer_->number("scalars");
  const LogRowShape& shape = writer_->shape(group);
  Bytes row = writer_->next(group, step);
  shape.put_stored<double>(row, "wall_time", {&wall_time, 1});
  shape.put_stored<int64_t>(row, "tokens", {&tokens, 1});
  for (const auto& [name, value] : values) shape.put(row, name, {&value, 1});
  writer_->push(group, step, std::move(row));
}

void RunLog::eval(int64_t step, const Values& values) {
  const size_t group = writer_->number("eval");
  Bytes row = writer_->next(group, step);
  for (const auto& [name, value] : values) writer_->shape(group).put(row, name, {&value, 1});
  writer_->push(group, step, std::move(row));
}

void RunLog::heads(const std::string& site_name, int64_t step, const HeadValues& values,
                   std::span<const uint8_t> alive) {
  const size_t group = writer_->number("heads/" + site_name);
  const LogSite& site = writer_->site(site_name);
  const LogRowShape& shape = writer_->shape(group);
  const size_t heads = site.heads;
  const std::vector<uint8_t> all(site.layers * heads, 1);
  if (alive.empty()) alive = all;
  Bytes row = writer_->next(group, step);
  shape.put_stored(row, "head_mask", alive);
  // What is said of a head that is not alive stays missing, whatever the caller gave.
  const auto single = [&](size_t i) { return alive[i] != 0; };
  const auto pair = [&](size_t i) {  // i = (layer * heads + head) * heads + head2
    const size_t first = i / heads;
    return alive[first] && alive[first / heads * heads + i % heads];
  };
  const auto expert = [&](size_t i) { return single(i / static_cast<size_t>(site.experts)); };
  for (const auto& [name, given] : values) {
    const auto statistic =
        std::find_if(site.statistics.begin(), site.statistics.end(),
                     [&asked = name](const LogStatistic& s) { return s.name == asked; });
    const LogDims dims = statistic == site.statistics.end() ? LogDims::kLayer : statistic->dims;
    if (dims == LogDims::kLayer) shape.put(row, name, given);
    if (dims == LogDims::kLayerHead) shape.put(row, name, given, single);
    if (dims == LogDims::kLayerHeadHead) shape.put(row, name, given, pair);
    if (dims == LogDims::kLayerHeadExpert) shape.put(row, name, given, expert);
  }
  writer_->push(group, step, std::move(row));
}

bool RunLog::attention(const std::string& site_name, int64_t step, std::span<const float> maps) {
  const size_t group = writer_->number("attention/" + site_name);
  const LogMaps& kept = *writer_->site(site_name).maps;
  const LogRowShape& shape = writer_->shape(group);
  Bytes row = writer_->next(group, step);
  const size_t weight_bytes = kept.packed ? sizeof(uint16_t) : sizeof(float);
  shape.require_count("weights", maps.size(), row.size() / weight_bytes);
  if (!writer_->room_for_maps(group, step)) return false;
  if (kept.packed) {
    shape.put_stored<uint16_t>(row, "weights", pack_weights(site_name, step, kept, maps));
  } else {
    shape.put_stored(row, "weights", maps);
  }
  writer_->push(group, step, std::move(row));
  return true;
}

std::map<std::string, std::vector<double>> RunLog::numbers(const std::string& group) {
  std::map<std::string, std::vector<double>> read;
  const size_t number = writer_->number(group);
  writer_->call([&](LogFile& file) { read = file.table(number).numbers(); });
  return read;
}

std::vector<std::string> RunLog::take_notices() { return writer_->take_notices(); }

void RunLog::sync() {
  writer_->call([](LogFile& file) { file.sync(); });
}

void RunLog::close(LogStatus status) { writer_->close(status); }

}  // namespace headlab
