#include "experiments/analysis/maps/single_threaded.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace headlab {

void for_each_single_threaded(int64_t n, const std::function<void(int64_t)>& body) {
  // A range of one would not open a parallel region: torch would split the work inside of it.
  at::parallel_for(0, std::max<int64_t>(n, 2), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < std::min(end, n); ++i) body(i);
  });
}

}  // namespace headlab
