// metrics.jsonl: one JSON object a logged step. No torch in here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace headlab {

// Numbers by name: "train/loss", "lr", ...
using Metrics = std::map<std::string, double>;

// JSON knows no such numbers, so they are the texts "NaN", "Infinity" and "-Infinity".
nlohmann::ordered_json metric_json(double value);
double metric_value(const nlohmann::ordered_json& json);  // std::invalid_argument for anything else

struct MetricsRow {
  int64_t step = 0, tokens = 0;
  double wall_s = 0;
  Metrics values;
  friend bool operator==(const MetricsRow&, const MetricsRow&) = default;
};

// A half-written last line does not count. RunError `path:line: what is wrong`.
std::vector<MetricsRow> read_metrics(const std::filesystem::path& path);

// Appends rows; each is in the file, for whoever reads along, when append() returns. Steps must not
// decrease. RunError where the storage refuses.
class MetricsFile {
 public:
  // Goes on after the checkpoint of `step` (0: a new run): later rows and a half-written last line
  // are dropped.
  MetricsFile(std::filesystem::path path, int64_t step);
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  ~MetricsFile();

  void append(const MetricsRow& row);
  void replace(const std::vector<MetricsRow>& rows);  // all of them, whole or not at all
  // Returns when every row so far is on the disk. Call it before a checkpoint is saved.
  void sync();

 private:
  void open();
  [[noreturn]] void fail() const;  // with errno

  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace headlab
