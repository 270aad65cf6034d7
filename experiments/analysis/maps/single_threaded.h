// Work that torch does on one thread at a time: sums whose order no number of threads changes.
#pragma once

#include <cstdint>
#include <functional>

namespace headlab {

// Runs body(0) .. body(n - 1), several at once where there are threads, each on one thread: what
// torch computes within one does not depend on how many there are.
void for_each_single_threaded(int64_t n, const std::function<void(int64_t)>& body);

}  // namespace headlab
