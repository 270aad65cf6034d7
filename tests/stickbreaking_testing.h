// What the tests of stick-breaking heads share: the product written out, key by key.
#pragma once

#include "tests/layers_testing.h"

namespace headlab::testing {

inline const std::vector<std::string> kRemainders{"value", "bias", "none"};

inline std::string with(const std::string& remainder, bool attend_current) {
  return ", remainder: " + remainder + (attend_current ? ", attend_current: true" : "");
}

inline Tensor heads_of(const Layer& layer, const Tensor& x, const char* name) {
  return split_heads(at::linear(x, parameter(layer, name)), kHeads);
}
inline Tensor scores_of(const Layer& layer, const Tensor& x) {
  return at::matmul(heads_of(layer, x, "q.weight"),
                    heads_of(layer, x, "k.weight").transpose(2, 3)) /
         std::sqrt(6.);
}

struct Sticks {
  Tensor a, rest;  // [B,H,T,T], [B,H,T]
};
// Key by key, by products: what `allowed` [B,H,T,T] shows of z breaks, the nearest key first.
inline Sticks broken(const Tensor& z, const Tensor& allowed, bool attend_current) {
  const int64_t T = z.size(2);
  auto a = at::zeros_like(z), rest = at::zeros_like(z.select(3, 0));
  for (int64_t i = 0; i < T; ++i) {
    auto left = at::ones_like(z.select(2, 0).select(2, 0));  // [B,H]
    for (int64_t j = attend_current ? i : i - 1; j >= 0; --j) {
      const auto share = z.select(2, i).select(2, j).sigmoid() * allowed.select(2, i).select(2, j);
      a.select(2, i).select(2, j).copy_(left * share);
      left = left * (1 - share);
    }
    rest.select(2, i).copy_(left);
  }
  return {a, rest};
}

inline Tensor output_of(const Layer& layer, const Tensor& heads) {
  return at::linear(heads.transpose(1, 2).flatten(2), parameter(layer, "o.weight"));
}

}  // namespace headlab::testing
