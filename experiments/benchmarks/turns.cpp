#include "experiments/benchmarks/turns.h"

#include <c10/core/Event.h>

#include <algorithm>
#include <limits>

#include "core/torch.h"
#include "experiments/system/stopwatch.h"

namespace headlab {

double timed(const c10::Device& device, const std::function<void()>& pass) {
  if (!device.is_cuda()) {
    const Stopwatch watch;
    pass();
    return watch.seconds();
  }
  const c10::impl::VirtualGuardImpl gpu(device.type());
  c10::Event begin(device.type(), c10::EventFlag::BACKEND_DEFAULT),
      end(device.type(), c10::EventFlag::BACKEND_DEFAULT);  // these measure time
  begin.record(gpu.getStream(device));
  pass();
  end.record(gpu.getStream(device));
  end.synchronize();
  return begin.elapsedTime(end) / 1e3;  // from milliseconds
}

double shortest_of_turn(const std::function<double()>& pass, double seconds) {
  constexpr int kFewest = 2;
  pass();
  double best = std::numeric_limits<double>::infinity();
  const Stopwatch turn;
  for (int n = 0; n < kFewest || turn.seconds() < seconds; ++n) best = std::min(best, pass());
  return best;
}

void add_round(PairedTimes& times, const std::function<double()>& own,
               const std::function<double()>& beside) {
  const bool own_first = times.own.size() % 2 == 1;
  if (own_first) times.own.push_back(own());
  times.beside.push_back(beside());
  if (!own_first) times.own.push_back(own());
}

Range range_of(std::vector<double> values) {
  TORCH_CHECK(!values.empty(), "a range of no values");
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  return {values.front(), median, values.back()};
}

std::vector<double> ratios_of(const PairedTimes& times) {
  TORCH_CHECK(times.own.size() == times.beside.size(), "times come in pairs: ", times.own.size(),
              " and ", times.beside.size());
  std::vector<double> ratios;
  for (size_t n = 0; n < times.own.size(); ++n) ratios.push_back(times.own[n] / times.beside[n]);
  return ratios;
}

}  // namespace headlab
