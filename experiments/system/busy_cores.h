// How threads wait for each other while another process wants their cores.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace headlab {

// Threads of OpenMP that wait for each other spin, and libgomp spins for milliseconds: with one
// other busy process on the machine a training falls to a tenth of its speed, for all wait for the
// one whose core is taken. A short spin loses less then, but a third where the machine is quiet
// (docs/measurements.md, "A busy neighbour"). libgomp spins shortly where it has more threads than
// there are cores: so while threads of this process wait for cores, a thread keeps a team that only
// sleeps.
class BusyCores {
 public:
  // Looks ten times a second, from now on. `open_team`: opens a parallel region of as many threads
  // as there are cores; libgomp counts them until the thread that called it ends.
  explicit BusyCores(std::function<void()> open_team);
  ~BusyCores();
  BusyCores(const BusyCores&) = delete;
  BusyCores& operator=(const BusyCores&) = delete;

 private:
  void watch(const std::function<void()>& open_team);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread watcher_;
};

// The watch over this process, as `train.busy_cores` asks for it. There is none where the kernel
// does not tell how long threads wait (/proc/self/schedstat), or where the user has chosen how
// threads wait (GOMP_SPINCOUNT, OMP_WAIT_POLICY).
//
// Of main(), which opens the team: watches from now on.
void watch_busy_cores(std::function<void()> open_team);
// Of all others: goes on, or begins again after an end. A program whose main() has called nothing
// stays without.
void watch_busy_cores();
void end_busy_cores();

// Whether to spin shortly, from what threads waited for cores, told once a window as a share of it:
// from the first window with a tenth on, until two seconds have gone by with hardly any.
class ShortSpin {
 public:
  bool after(double waited_share);

 private:
  bool on_ = false;
  int quiet_windows_ = 0;
};

// Seconds for which the threads that this process has now were ready to run and had no core; 0
// where the system does not tell (/proc/self/task/*/schedstat).
double waited_for_cores();

}  // namespace headlab
