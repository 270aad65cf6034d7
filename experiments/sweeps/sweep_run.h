// Runs the points of a sweep, several at once, each as a process of this program.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "experiments/runs/run_files.h"
#include "experiments/sweeps/sweep_points.h"
#include "experiments/system/spawned_program.h"
#include "experiments/system/stopwatch.h"
#include "experiments/system/writer_lock.h"

namespace headlab {

enum class PointState {
  kWaiting,    // to be begun
  kLocked,     // a process of this host trains it, and not for this sweep
  kRunning,    // by this sweep
  kFinished,   // now or before
  kStopped,    // before its end, and resumable
  kElsewhere,  // a process of another host trains it
  kGivenUp,    // before its end, by SweepOrders::give_up
  kFailed
};

struct PointStatus {
  PointState state = PointState::kWaiting;
  int code = 0;             // exit code that it counts for
  std::string reason = {};  // why it stopped, failed or waits
  bool found = false;       // finished before this sweep came to it
};

struct SweepOrders {
  int64_t jobs = 1;   // at once
  int64_t ranks = 1;  // processes of a training
  bool fail_fast = false;
  // Names for CUDA_VISIBLE_DEVICES, which the processes take in turn, one each; empty: each finds
  // what this process finds.
  std::vector<std::string> gpus = {};
  std::map<std::string, std::string> environment = {};  // of the trainings, over this process's
  std::string device = "auto";                          // of the trainings, as run's --device
  // Called when a point has another state, and between two looks at what runs.
  std::function<void(size_t point)> changed = [](size_t) {};
  std::function<void()> looked = [] {};
  // The reason to give a training up; "": train it. Asked before it begins, and every 5 s.
  std::function<std::string(size_t point)> give_up = [](size_t) { return std::string(); };
  // How a point has ended that would be begun again otherwise; none: it has not.
  std::function<std::optional<PointStatus>(size_t point)> known = [](size_t) {
    return std::optional<PointStatus>();
  };
};

// What process `rank` of the training in a slot is given over this process's environment. `port`:
// of this host, for the processes to meet at.
std::map<std::string, std::string> environment_of(const SweepOrders& orders, int64_t slot,
                                                  int64_t rank, const std::string& port);

class SweepRun {
 public:
  SweepRun(const FrozenSweep& sweep, SweepOrders orders);

  // Returns when nothing is left to do: 0 where all points are finished or given up, 75 where some
  // are stopped and none has failed, else the code of the first that failed. A signal that asks to
  // stop goes to each training once, and their ends are waited for.
  int run();
  const std::vector<PointStatus>& points() const { return points_; }

 private:
  struct Job {
    size_t point;
    WriterLock output;  // what another sweep's child prints of the point is not this one's
    std::vector<SpawnedProgram> ranks;
    uintmax_t output_before;  // bytes
    int64_t slot;             // of SweepOrders::jobs
    std::string given_up = {};

    std::optional<int> ended();  // the code of rank 0, once all have ended
    void signal(int number) const;
  };

  void look_at_all();
  void look_at(size_t point);  // and begin it, where it is to be trained and there is room
  void leave_to(size_t point, const std::string& holder);
  void give_up_some();
  void look_at_finished(size_t point);
  void begin(size_t point);
  int64_t free_slot() const;
  void end(const Job& job, int code);
  void settle(size_t point, PointStatus status);
  void pass_on_signal();
  void stop_all(int signal);
  bool is_done() const;
  int exit_code() const;
  std::filesystem::path output_of(size_t point) const;
  std::string said_by(const Job& job) const;

  const FrozenSweep& sweep_;
  SweepOrders orders_;
  std::vector<PointStatus> points_;
  std::list<Job> jobs_;
  bool stopping_ = false;  // nothing new is begun
  Stopwatch clock_;
  double locks_looked_at_ = 0, asked_to_give_up_ = 0;  // seconds
};

// How many cores a training of a sweep takes, and how many trainings there are at once.
struct SweepThreads {
  int64_t of_a_run = 1, jobs = 1;
  bool set = true;  // by the configs or by OMP_NUM_THREADS

  // What a training is to be given: none where its threads are set. Trainings that may use every
  // core would each wait for all others.
  std::map<std::string, std::string> environment() const;
};

// `jobs`: that were asked for; 0: as many as there are GPUs, if any, else as the cores hold.
// `ranks`: processes of a training. ConfigError where they cannot share the updates of a point.
SweepThreads threads_of(const FrozenSweep& sweep, int64_t jobs, int64_t gpus = 0,
                        int64_t ranks = 1);

}  // namespace headlab
