#include "experiments/system/busy_cores.h"

#include <pthread.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "experiments/system/startable_threads.h"

namespace headlab {

namespace {

constexpr std::chrono::milliseconds kWindow(100);
constexpr double kBusy = .1;
constexpr double kQuiet = .02;
constexpr int kQuietWindows = 20;

// A thread with a team of its own that only sleeps, for as long as it lives.
class IdleTeam {
 public:
  explicit IdleTeam(const std::function<void()>& open_team)
      : owner_([this, &open_team] {
          // The threads that OpenMP starts from here have this name, too.
          pthread_setname_np(pthread_self(), "busy_cores_team");
          open_team();
          std::unique_lock lock(mutex_);
          changed_.wait(lock, [&] { return ended_; });
        }) {}
  ~IdleTeam() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_one();
    owner_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread owner_;
};

bool system_tells_of_waiting() {
  double ran = 0, waited = 0;
  return static_cast<bool>(std::ifstream("/proc/self/schedstat") >> ran >> waited);
}

bool user_chose_how_threads_wait() {
  return std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr;
}

std::function<void()> team_of_process;
std::optional<BusyCores> watch_of_process;

}  // namespace

double waited_for_cores() {
  namespace fs = std::filesystem;
  double nanoseconds = 0;
  std::error_code error;
  for (fs::directory_iterator task("/proc/self/task", error), end; !error && task != end;
       task.increment(error)) {
    double ran = 0, waited = 0;
    if (std::ifstream(task->path() / "schedstat") >> ran >> waited) nanoseconds += waited;
  }
  return nanoseconds / 1e9;
}

bool ShortSpin::after(double waited_share) {
  if (waited_share > kBusy) on_ = true;
  quiet_windows_ = waited_share < kQuiet ? quiet_windows_ + 1 : 0;
  if (quiet_windows_ >= kQuietWindows) on_ = false;
  return on_;
}

BusyCores::BusyCores(std::function<void()> open_team)
    : watcher_([this, open_team = std::move(open_team)] { watch(open_team); }) {}

BusyCores::~BusyCores() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_one();
  watcher_.join();
}

void watch_busy_cores(std::function<void()> open_team) {
  team_of_process = std::move(open_team);
  watch_busy_cores();
}

void watch_busy_cores() {
  if (watch_of_process || !team_of_process) return;
  if (user_chose_how_threads_wait() || !system_tells_of_waiting()) return;
  watch_of_process.emplace(team_of_process);
}

void end_busy_cores() { watch_of_process.reset(); }

void BusyCores::watch(const std::function<void()>& open_team) {
  pthread_setname_np(pthread_self(), "busy_cores");
  ShortSpin spin;
  std::optional<IdleTeam> team;
  double before = waited_for_cores();
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kWindow, [&] { return ended_; })) {
    const double waited = waited_for_cores();
    if (!spin.after((waited - before) / std::chrono::duration<double>(kWindow).count()))
      team.reset();
    else if (!team && can_start_threads(1 + static_cast<int>(std::thread::hardware_concurrency())))
      team.emplace(open_team);
    before = waited;
  }
}

}  // namespace headlab
