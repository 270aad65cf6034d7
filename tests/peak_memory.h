// The allocations of a function, under the names that tests use.
#pragma once

#include "experiments/benchmarks/allocations.h"

namespace headlab::testing {

using Memory = Allocations;

inline Memory memory_of(const std::function<void()>& run) { return allocations_of(run); }

}  // namespace headlab::testing
