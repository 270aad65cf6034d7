// Named tensors in tests.
#pragma once

#include <algorithm>

#include "core/torch.h"
#include "experiments/models/named_tensors.h"

namespace headlab::testing {

inline bool same(const NamedTensors& a, const NamedTensors& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](auto& x, auto& y) {
           return x.first == y.first && x.second.scalar_type() == y.second.scalar_type() &&
                  x.second.equal(y.second);
         });
}

}  // namespace headlab::testing
