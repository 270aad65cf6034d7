// The log of a run: an HDF5 file of schema 1.0.0, written by one thread behind a bounded queue.
//
// The trainer says once what will be logged (LogLayout), then hands over rows. Everything is made
// before SWMR writing starts, so that notebooks read the file while it grows, and no committed row
// is lost when the process is killed. No torch in here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "experiments/logs/labelled_arrays.h"

namespace headlab {

enum class LogDims { kLayerHead, kLayerHeadHead, kLayer, kLayerHeadExpert };  // after `step`

struct LogStatistic : LogVariable {
  LogDims dims = LogDims::kLayerHead;
};

// The images that the places of a site's maps are cut from, one a probe.
struct LogImages {
  int64_t channels = 0, rows = 0, columns = 0;  // of pixels
  int64_t patch = 0;                            // pixels a side
  int64_t cls_tokens = 0;                       // places ahead of the first patch
  std::vector<uint8_t> pixels;                  // [probe, channel, row, column]
};

// Attention maps of fixed probes. Layers and heads are indices in the site's grid.
struct LogMaps {
  int64_t probes = 0;
  std::vector<int64_t> layers, heads;  // those kept
  std::vector<int64_t> query, key;     // positions kept
  // softmax, composed or none. Packed maps (2 bytes a weight, exact to 1/131068) must lie in
  // [0, 1]; composed maps cannot be packed, and one composed layer unpacks them all.
  std::string normalization = "softmax";
  bool packed = true;
  std::vector<int32_t> query_token, key_token;    // [probe, query], [probe, key]; -1: no token
  std::vector<int32_t> query_length, key_length;  // [probe]
  std::string query_vocabulary = "vocab", key_vocabulary = "vocab";  // of LogLayout, of the tokens
  std::optional<LogImages> images;
};

// One place where a model attends: self; or encoder_self, decoder_self, cross.
struct LogSite {
  std::string name;
  int64_t layers = 0, heads = 0;  // the full grid: a layer with fewer heads masks the rest
  int64_t experts = 0;  // of a head, where statistics are by expert: the most of any layer
  std::vector<LogStatistic> statistics;
  std::optional<LogMaps> maps;
};

// What a file says of itself in its root.
struct RootAttributes {
  std::string title, run_id, config_yaml, manifest_json;
  std::string created_utc;  // 2026-01-31T12:00:00Z
};

struct LogLayout : RootAttributes {
  std::vector<LogVariable> scalars = {};  // beside step, wall_time and tokens
  std::vector<LogVariable> evals = {};    // beside step
  std::vector<LogSite> sites = {};
  // By name the texts of tokens 0, 1, ...; bytes that are no UTF-8 become <0xHH>.
  std::map<std::string, std::vector<std::string>> vocabularies = {};
};

struct RunLogOptions {
  int64_t flush_every = 10;  // rows
  double flush_seconds = 5;  // or this long after the oldest row that is not yet in the file
  int64_t max_bytes = int64_t{2} << 30;  // of all maps before compression; then maps stop
  // false: for file systems without POSIX writes (NFS). Whole chunks are written, nobody can read
  // along, and a kill loses the rows since the last sync(). So it is too where SWMR is refused.
  bool swmr = true;
  bool repaired = false;  // resume() need not look: drop_unlogged() has, just before
};

// Bytes that one snapshot of a site's maps takes before compression, 0 without maps.
int64_t map_bytes(const LogSite& site);

enum class LogStatus { kFinished, kStopped, kFailed };

// Rows are numbers by name. A name that the layout lacks is std::invalid_argument; a variable that
// a row lacks is NaN. Steps of a group must increase. An error of the writing thread (RunError) is
// rethrown by every later call.
class RunLog {
 public:
  // Makes the log, replacing what is there. Holds `<path>.lock` while it lives: RunError names the
  // process that has it.
  static RunLog create(const std::filesystem::path& path, const LogLayout& layout,
                       const RunLogOptions& options = {});
  // Goes on after the checkpoint of `step`: repairs the file if its writer died, checks run_id,
  // schema and layout, drops the rows after `step` and adds a row to /resumes. `wall_time` as in
  // scalars().
  static RunLog resume(const std::filesystem::path& path, const LogLayout& layout, int64_t step,
                       double wall_time, const RunLogOptions& options = {});
  RunLog(RunLog&&) noexcept;
  RunLog& operator=(RunLog&&) = delete;
  ~RunLog();  // a log that was not closed is closed as failed

  using Values = std::map<std::string, double>;
  using HeadValues = std::map<std::string, std::vector<double>>;

  // wall_time: seconds of training since the run began. tokens: seen since then.
  void scalars(int64_t step, double wall_time, int64_t tokens, const Values& values);
  void eval(int64_t step, const Values& values);
  // values: by statistic, [layer, head], [layer, head, head2], [layer, head, expert] or [layer].
  // alive: [layer, head] of 0 and 1, empty for all alive; values of heads that are not alive are
  // stored as NaN.
  void heads(const std::string& site, int64_t step, const HeadValues& values,
             std::span<const uint8_t> alive = {});
  // maps: [probe, layer, head, query, key] over what LogMaps keeps, NaN where there is no such head
  // or position. RunError, and nothing is written, when packed weights leave [0, 1] by more than
  // 1e-6. False: not kept, because max_bytes is reached (`skipped_from` in the log says since
  // when).
  bool attention(const std::string& site, int64_t step, std::span<const float> maps);

  // Of a group, "scalars" or "eval", the rows that are in the file: by name a number each, `step`
  // among them.
  std::map<std::string, std::vector<double>> numbers(const std::string& group);

  // What people should be told of this log, each thing once: that nobody can read along, and why;
  // that maps have ended. Those since the last call, by whom the rows come from.
  std::vector<std::string> take_notices();

  // Returns when every row so far is on the disk. Call it before a checkpoint is published, so that
  // resume() finds every row up to the checkpoint.
  void sync();
  void close(LogStatus status);

 private:
  class Writer;
  explicit RunLog(std::unique_ptr<Writer> writer);
  std::unique_ptr<Writer> writer_;
};

}  // namespace headlab
