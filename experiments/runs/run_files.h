// The run directory: its name, its files, who may write it, and how commands find it.
// No torch in here.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/config/config.h"
#include "experiments/runs/run_metrics.h"
#include "experiments/system/writer_lock.h"

namespace headlab {

// First 8 hexadecimal digits of the SHA-256 of an experiment, written with write_minimal(), so that
// a new option moves no run.
// Top-level `seed`, settings of the machine and the order of keys do not count.
std::string config_hash(ConfigNode experiment);
// Removes `train.threads` and `train.busy_cores`, which say how a machine computes a run, and not
// which run it is.
void remove_settings_of_machine(ConfigNode& experiment);
// `<out>/<name>/<hash>-s<seed>`
std::filesystem::path run_path(const std::filesystem::path& out, const std::string& name,
                               const std::string& hash, int64_t seed);

enum class RunState { kRunning, kFinished, kStopped, kFailed, kDiverged };
std::string run_state_name(RunState state);  // as status.json has it: "running", ...

// status.json, beside the pid and host of a running process and the time it was written.
struct RunStatus {
  RunState state = RunState::kRunning;
  std::string reason = {};  // why it is no longer running; empty: nothing to say
  int64_t step = 0;         // last finished update
  Metrics metrics = {};     // final ones
};

bool is_run(const std::filesystem::path& directory);  // it holds a config.yaml

// RunError of a path that is to hold runs and is not UTF-8, which their files are written in.
void require_utf8(const std::filesystem::path& path);

// What lies at a path where a run should go.
struct FoundRun {
  enum class Kind {
    kAbsent,       // nothing, or an empty directory
    kInterrupted,  // resumable: stopped, failed, diverged, or its process died
    kRunning,      // a process writes it
    kFinished
  };
  Kind kind = Kind::kAbsent;
  std::string holder = {};               // of a running one: "process 123 on host"
  std::optional<RunStatus> status = {};  // none where status.json is missing or damaged
};
// RunError where something else lies there. Changes nothing.
FoundRun find_run(const std::filesystem::path& path);
// status.json; none where it is missing or damaged.
std::optional<RunStatus> read_status(const std::filesystem::path& run);

// A run directory that this process writes; nobody else can while the object lives. One that an
// exception takes away before its end() has failed.
class RunDirectory {
 public:
  RunDirectory(RunDirectory&&) noexcept = default;
  ~RunDirectory();
  // Makes `path` with config.yaml, manifest.json, status.json (running) and, where there is a text
  // for it, data.json inside, whole or not at all. RunError `path: cannot be made: reason`, also
  // where anything but an empty directory lies there.
  static RunDirectory create(const std::filesystem::path& path, const std::string& config_yaml,
                             const nlohmann::ordered_json& manifest,
                             const std::string& data_json = {});
  // Goes on with an interrupted run, whose lock is held: removes what a killed process left behind,
  // and writes the manifest (see continue_manifest) and status.json (running, at the step where it
  // stood), and data.json where an older version made none. RunError, and nothing has changed, when
  // its data are others now.
  static RunDirectory resume(const std::filesystem::path& path, WriterLock lock,
                             const nlohmann::ordered_json& manifest,
                             const std::string& data_json = {});
  // Starts an existing run anew, whose lock is held: everything in it is gone.
  static RunDirectory replace(const std::filesystem::path& path, WriterLock lock,
                              const std::string& config_yaml,
                              const nlohmann::ordered_json& manifest,
                              const std::string& data_json = {});

  const std::filesystem::path& path() const { return path_; }
  const nlohmann::ordered_json& manifest() const { return manifest_; }
  void running(int64_t step, const Metrics& metrics = {});  // rewrites status.json
  // Adds to the manifest; in the file with end().
  void note(const std::string& key, nlohmann::ordered_json value);
  // The last status (anything but kRunning), and end time and status in the manifest.
  void end(const RunStatus& status);
  // end() as failed, for who has an error to report: another one does not take its place. A run
  // that has ended by then stays as it is.
  void fail(const std::string& reason) noexcept;

 private:
  RunDirectory(std::filesystem::path path, WriterLock lock, nlohmann::ordered_json manifest);

  std::filesystem::path path_;
  WriterLock lock_;
  nlohmann::ordered_json manifest_;
  bool ended_ = false;
  int exceptions_ = std::uncaught_exceptions();
};

// What a command was given as RUN.
struct LocatedRun {
  std::filesystem::path run;
  std::filesystem::path checkpoint;  // the one that was named; empty: the run's latest
};
// `path`: a run directory or a checkpoint directory (or link) inside one. RunError
// `path: not a run: ...`, with what is there instead.
LocatedRun locate_run(const std::filesystem::path& path);

}  // namespace headlab
