// What the tests of the log share: a folder of their own, a small layout, a child process.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "experiments/files/h5.h"
#include "experiments/logs/run_log.h"
#include "tests/scratch.h"

namespace headlab {

// 2 layers of 3 heads, with maps of 2 probes, both layers, heads 0 and 2, 3 queries, 4 keys.
inline LogLayout small_layout() {
  LogLayout layout;
  layout.run_id = "small/12345678-s1";
  layout.title = "small";
  layout.created_utc = "2026-01-31T12:00:00Z";
  layout.scalars = {{"train_loss", "nat", "training loss", "mean over targets of -ln p(target)"}};
  layout.evals = {{"val_loss", "nat", "validation loss", "mean over targets of -ln p(target)"}};
  LogMaps maps;
  maps.probes = 2;
  maps.layers = {0, 1};
  maps.heads = {0, 2};
  maps.query = {0, 1, 2};
  maps.key = {0, 1, 2, 3};
  maps.query_token = std::vector<int32_t>(6, 0);
  maps.key_token = std::vector<int32_t>(8, 1);
  maps.query_length = {3, 3};
  maps.key_length = {4, 4};
  LogSite site;
  site.name = "self";
  site.layers = 2;
  site.heads = 3;
  site.statistics = {
      {{"entropy", "nat", "entropy", "-sum_j a ln a"}, LogDims::kLayerHead},
      {{"js", "nat", "Jensen-Shannon divergence", "of two heads' rows"}, LogDims::kLayerHeadHead},
      {{"residual_ratio", "1", "residual ratio", "of the layer's input"}, LogDims::kLayer}};
  site.maps = maps;
  layout.sites = {site};
  layout.vocabularies["vocab"] = {"a", "b"};
  return layout;
}
constexpr size_t kMapSize = 2 * 2 * 2 * 3 * 4;  // weights of a snapshot of small_layout

inline double loss_at(int64_t step) { return 3.0 + static_cast<double>(step) / 4; }

inline std::vector<double> entropy_at(int64_t step) {
  std::vector<double> values;
  for (int head = 0; head < 6; ++head) values.push_back(static_cast<double>(step) + head / 8.0);
  return values;
}

// One record of scalars and of heads.
inline void log_step(RunLog& log, int64_t step) {
  log.scalars(step, static_cast<double>(step) / 2, step * 10, {{"train_loss", loss_at(step)}});
  log.heads("self", step, {{"entropy", entropy_at(step)}});
}

// A child process that runs `body` and can tell its parent numbers.
class Child {
 public:
  using Say = std::function<void(int64_t)>;
  explicit Child(const std::function<void(const Say&)>& body) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe");
    process_ = fork();
    if (process_ < 0) throw std::runtime_error("no process");
    if (process_ == 0) {
      close(ends[0]);
      int code = 0;
      try {
        body([&](int64_t number) {
          if (write(ends[1], &number, sizeof number) != sizeof number) _exit(9);
        });
      } catch (const std::exception&) {
        code = 8;  // the parent's test sees it
      }
      _exit(code);
    }
    close(ends[1]);
    from_ = ends[0];
  }
  Child(const Child&) = delete;
  ~Child() {
    kill();
    close(from_);
  }
  bool hear(int64_t& number) { return read(from_, &number, sizeof number) == sizeof number; }
  void kill() {
    if (process_ > 0) ::kill(process_, SIGKILL);
    wait();
  }
  int wait() {  // the exit code, -1 when it ended by a signal
    if (process_ > 0) {
      int status = 0;
      waitpid(std::exchange(process_, 0), &status, 0);
      code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    return code_;
  }
  pid_t process() const { return process_; }

 private:
  pid_t process_ = 0;
  int from_ = -1, code_ = -1;
};

// The number of records, which must be those of log_step(0), (1), ...
inline int64_t check_records(const std::filesystem::path& path) {
  const H5File file = H5File::open(path);
  const H5Group root = file.root();
  const auto steps = root.dataset("heads/self/step").read<int64_t>();
  const auto entropy = root.dataset("heads/self/entropy").read<float>();
  const auto losses = root.dataset("scalars/train_loss").read<float>();
  REQUIRE(entropy.size() == steps.size() * 6);
  REQUIRE(losses.size() == root.dataset("scalars/step").rows());
  bool same = true;
  for (size_t row = 0; row < losses.size(); ++row) {
    same = same && losses[row] == static_cast<float>(loss_at(static_cast<int64_t>(row)));
  }
  for (size_t row = 0; row < steps.size(); ++row) {
    same = same && steps[row] == static_cast<int64_t>(row);
    for (int head = 0; head < 6; ++head) {
      const double expected = entropy_at(static_cast<int64_t>(row))[head];
      same = same && entropy[row * 6 + head] == static_cast<float>(expected);
    }
  }
  CHECK(same);
  const auto maps = root.dataset("attention/self/weights").read<uint16_t>();
  CHECK(maps.size() == root.dataset("attention/self/step").rows() * kMapSize);
  CHECK(std::all_of(maps.begin(), maps.end(), [](uint16_t w) { return w == 16384; }));
  return std::min<int64_t>(steps.size(), losses.size());
}

}  // namespace headlab
