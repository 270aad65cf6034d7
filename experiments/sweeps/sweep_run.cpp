#include "experiments/sweeps/sweep_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>

#include "core/errors.h"
#include "experiments/ranks/launch.h"
#include "experiments/runs/run_code.h"
#include "experiments/runs/run_identity.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/runs/same_run.h"
#include "experiments/system/exit_codes.h"
#include "experiments/system/host_name.h"
#include "experiments/system/signals.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Json = nlohmann::ordered_json;

constexpr auto kBetweenLooks = 50ms;
constexpr double kBetweenLocks = 0.5;  // seconds
constexpr double kBetweenGivingUp = 5;

bool of_this_host(const std::string& holder) {
  const auto on = holder.rfind(" on ");
  return on == holder.npos ||
         holder.substr(on + 4) == host_name();  // one that has not said who it is
}

// The last line in which a program says what went wrong, without its name.
std::string last_complaint(const std::string& said) {
  static const std::string name = "headlab: ";
  std::string last;
  std::istringstream in(said);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(name)) last = line.substr(name.size());
  return last;
}

bool is_stop(int code) {
  return code == kResumable || code == kInterrupted || code == kTerminated || code == kHungUp;
}

// In what a finished run is not what this program would make of the point.
std::vector<std::string> what_is_other(const FrozenPoint& point) {
  const auto manifest = read_manifest(point.run);
  if (!manifest.is_object()) return {};
  auto lines = kinds_that_differ(manifest.value("code", Json()));
  if (hash_of_run(point.run) == point.hash) return lines;
  for (auto& line : settings_that_differ(point.run, point.experiment))
    lines.push_back(std::move(line));
  if (lines.empty()) lines.emplace_back("its data were others");
  return lines;
}

int64_t threads_of_environment() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  return text == nullptr ? 0 : std::max<int64_t>(std::strtoll(text, nullptr, 10), 0);
}

}  // namespace

std::map<std::string, std::string> environment_of(const SweepOrders& orders, int64_t slot,
                                                  int64_t rank, const std::string& port) {
  auto environment = orders.environment;
  environment[kStartedBySweep] = "1";
  if (!orders.gpus.empty())
    environment["CUDA_VISIBLE_DEVICES"] =
        orders.gpus[(slot * orders.ranks + rank) % std::ssize(orders.gpus)];
  if (orders.ranks == 1) return environment;
  environment["RANK"] = std::to_string(rank);
  environment["WORLD_SIZE"] = std::to_string(orders.ranks);
  environment["MASTER_ADDR"] = "127.0.0.1";
  environment["MASTER_PORT"] = port;
  return environment;
}

SweepRun::SweepRun(const FrozenSweep& sweep, SweepOrders orders)
    : sweep_(sweep), orders_(std::move(orders)), points_(sweep.points.size()) {}

int SweepRun::run() {
  StopSignals signals;
  for (size_t i = 0; i < points_.size(); ++i)
    if (const auto status = read_status(sweep_.points[i].run);
        status && status->state == RunState::kFinished)
      look_at(i);
  for (;;) {
    pass_on_signal();
    look_at_all();
    if (is_done()) return exit_code();
    orders_.looked();
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

bool SweepRun::is_done() const {
  return jobs_.empty() &&
         (stopping_ || std::none_of(points_.begin(), points_.end(), [](const auto& point) {
            return point.state == PointState::kWaiting || point.state == PointState::kLocked;
          }));
}

int SweepRun::exit_code() const {
  int code = kDone;
  for (const auto& point : points_) {
    if (point.state == PointState::kFailed) return point.code;
    if (point.state != PointState::kFinished && point.state != PointState::kGivenUp)
      code = kResumable;
  }
  return code;
}

void SweepRun::look_at_all() {
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    const auto code = job->ended();
    if (code) end(*job, *code);
    job = code ? jobs_.erase(job) : std::next(job);
  }
  const bool locks_too = clock_.seconds() - locks_looked_at_ >= kBetweenLocks;
  if (locks_too) locks_looked_at_ = clock_.seconds();
  if (clock_.seconds() - asked_to_give_up_ >= kBetweenGivingUp) give_up_some();
  const auto full = [&] { return static_cast<int64_t>(jobs_.size()) >= orders_.jobs; };
  for (size_t i = 0; i < points_.size() && !stopping_ && !full(); ++i)
    if (points_[i].state == PointState::kWaiting ||
        (locks_too && points_[i].state == PointState::kLocked))
      look_at(i);
}

void SweepRun::give_up_some() {
  asked_to_give_up_ = clock_.seconds();
  for (auto& job : jobs_) {
    if (!job.given_up.empty() || stopping_) continue;
    job.given_up = orders_.give_up(job.point);
    if (!job.given_up.empty()) job.signal(SIGTERM);
  }
}

void SweepRun::look_at(size_t point) {
  try {
    const auto found = find_run(sweep_.points[point].run);
    if (found.kind == FoundRun::Kind::kFinished) return look_at_finished(point);
    if (found.kind == FoundRun::Kind::kRunning) return leave_to(point, found.holder);
    if (const auto holder = WriterLock::holder(output_of(point))) return leave_to(point, *holder);
    if (auto status = orders_.known(point)) return settle(point, std::move(*status));
    if (const auto why = orders_.give_up(point); !why.empty())
      return settle(point, {.state = PointState::kGivenUp, .reason = why});
    if (static_cast<int64_t>(jobs_.size()) < orders_.jobs) begin(point);
  } catch (const TakenError& error) {
    settle(point, {.state = PointState::kLocked, .reason = error.what()});
  } catch (const RunError& error) {
    settle(point, {.state = PointState::kFailed, .code = kStorage, .reason = error.what()});
  }
}

void SweepRun::leave_to(size_t point, const std::string& holder) {
  const bool here = of_this_host(holder);
  settle(point, {.state = here ? PointState::kLocked : PointState::kElsewhere,
                 .code = here ? 0 : kResumable,
                 .reason = "is being written by " + holder});
}

void SweepRun::look_at_finished(size_t point) {
  try {
    const auto other = what_is_other(sweep_.points[point]);
    if (other.empty()) return settle(point, {.state = PointState::kFinished, .found = true});
    settle(point,
           {.state = PointState::kFailed,
            .code = kStorage,
            .reason = fmt::format("a run of this config lies there, and it is not the same: {}; "
                                  "tag=WORD trains all points anew beside it",
                                  fmt::join(other, "; "))});
  } catch (const ConfigError& error) {
    settle(point, {.state = PointState::kFailed, .code = kStorage, .reason = error.what()});
  } catch (const Json::exception&) {  // a manifest that this version has not written
    settle(point, {.state = PointState::kFinished, .found = true});
  }
}

fs::path SweepRun::output_of(size_t point) const {
  return sweep_.folder / "output" /
         sweep_.points[point].config.filename().replace_extension(".txt");
}

int64_t SweepRun::free_slot() const {
  int64_t slot = 0;
  while (std::ranges::any_of(jobs_, [&](const Job& job) { return job.slot == slot; })) ++slot;
  return slot;
}

void SweepRun::begin(size_t point) {
  const auto& frozen = sweep_.points[point];
  WriterLock output(output_of(point));
  std::error_code none;
  const auto before = fs::file_size(output_of(point), none);
  const std::vector<std::string> arguments{
      "run", frozen.config.string(), "--out", sweep_.out.string(), "--device", orders_.device};
  const auto port = orders_.ranks > 1 ? std::to_string(free_port()) : "";
  jobs_.push_back({point, std::move(output), {}, none ? 0 : before, free_slot()});
  try {
    for (int64_t rank = 0; rank < orders_.ranks; ++rank)
      jobs_.back().ranks.emplace_back(arguments, output_of(point),
                                      environment_of(orders_, jobs_.back().slot, rank, port));
  } catch (...) {
    jobs_.pop_back();
    throw;
  }
  settle(point, {.state = PointState::kRunning});
}

std::optional<int> SweepRun::Job::ended() {
  std::optional<int> code;
  bool all = true;
  for (auto& rank : ranks) {
    const auto its = rank.ended();
    if (&rank == &ranks.front()) code = its;
    all = all && its;
  }
  return all ? code : std::nullopt;
}

void SweepRun::Job::signal(int number) const {
  for (const auto& rank : ranks) rank.signal(number);
}

std::string SweepRun::said_by(const Job& job) const {
  std::ifstream in(output_of(job.point), std::ios::binary);
  in.seekg(static_cast<std::streamoff>(job.output_before));
  return {std::istreambuf_iterator<char>(in), {}};
}

void SweepRun::end(const Job& job, int code) {
  const auto status = read_status(sweep_.points[job.point].run);
  const auto said = said_by(job);
  if (code == kDone || code == kRunWasFinished ||
      (is_stop(code) && status && status->state == RunState::kFinished))
    return settle(job.point, {.state = PointState::kFinished, .found = code == kRunWasFinished});
  // The signal also ends a training that has not come to ask for it.
  if ((is_stop(code) || code == -SIGTERM) && !job.given_up.empty())
    return settle(job.point, {.state = PointState::kGivenUp, .reason = job.given_up});
  if (is_stop(code) || (code < 0 && stopping_))
    return settle(job.point, {.state = PointState::kStopped,
                              .code = kResumable,
                              .reason = status ? status->reason : ""});
  if (code == kRunIsTaken)
    return settle(job.point, {.state = PointState::kLocked, .reason = last_complaint(said)});
  auto reason = last_complaint(said);
  if (code == kDiverged && status) reason = status->reason;
  if (code < 0) reason = fmt::format("was ended by signal {} ({})", -code, strsignal(-code));
  settle(job.point, {.state = PointState::kFailed,
                     .code = code < 0 ? static_cast<int>(kInternal) : code,
                     .reason = reason});
}

void SweepRun::settle(size_t point, PointStatus status) {
  const bool changed = points_[point].state != status.state;
  const bool failed = status.state == PointState::kFailed;
  points_[point] = std::move(status);
  if (changed) orders_.changed(point);
  if (failed && orders_.fail_fast && !stopping_) stop_all(SIGTERM);
}

void SweepRun::pass_on_signal() {
  if (const int signal = StopSignals::received(); signal != 0 && !stopping_) stop_all(signal);
}

void SweepRun::stop_all(int signal) {
  stopping_ = true;
  for (const auto& job : jobs_)
    if (job.given_up.empty()) job.signal(signal);  // a second one ends it at once
}

std::map<std::string, std::string> SweepThreads::environment() const {
  if (set) return {};
  return {{"OMP_NUM_THREADS", std::to_string(of_a_run)}};
}

SweepThreads threads_of(const FrozenSweep& sweep, int64_t jobs, int64_t gpus, int64_t ranks) {
  const auto cores = std::max<int64_t>(std::thread::hardware_concurrency(), 1);
  const int64_t given = threads_of_environment();
  if (jobs == 0 && gpus > 0) jobs = std::max<int64_t>(gpus / ranks, 1);
  SweepThreads threads{.of_a_run = 0, .jobs = jobs, .set = true};
  for (const auto& point : sweep.points) {
    point.experiment.train.require_parts(ranks);
    const auto own = point.experiment.train.threads.value_or(given);
    threads.of_a_run = std::max(threads.of_a_run, own);
    threads.set = threads.set && own > 0;
  }
  if (threads.of_a_run == 0)
    threads.of_a_run = std::max<int64_t>(cores / (std::max<int64_t>(jobs, 1) * ranks), 1);
  if (jobs == 0) threads.jobs = std::max<int64_t>(cores / (threads.of_a_run * ranks), 1);
  return threads;
}

}  // namespace headlab
