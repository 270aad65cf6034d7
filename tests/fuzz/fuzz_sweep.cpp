// Sweep files and comparison files, both read as either.
#include <algorithm>

#include "experiments/comparison/comparison_file.h"
#include "experiments/sweeps/sweep_file.h"
#include "tests/fuzz/fuzzing.h"

namespace headlab {
namespace {

void read(const ConfigNode& file) {
  // A short file may lawfully ask for many points, whose memory no limit here allows.
  const auto sweep = read_sweep(file);
  size_t points = sweep.bases.size();
  for (const auto& axis : sweep.axes)
    points = std::min<size_t>(points * axis.places.size(), 1 << 20);
  if (points <= 1000) points_of(sweep);
}

}  // namespace
}  // namespace headlab

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headlab;
  const std::string text(reinterpret_cast<const char*>(data), size);
  fuzzing::parse(size, "fuzz.yaml", [&] { read(parse_config(text, "fuzz.yaml")); });
  fuzzing::parse(size, "fuzz.yaml", [&] { read_comparison(parse_config(text, "fuzz.yaml")); });
  return 0;
}
