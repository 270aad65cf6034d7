// What the tests of single kinds share: looking into a layer and setting its weights.
#pragma once

#include "experiments/analysis/patterns.h"
#include "tests/catch.h"
#include "tests/heads_testing.h"

namespace headlab::testing {

using Layer = std::shared_ptr<AttentionHeads>;

inline Tensor parameter(const Layer& layer, const std::string& name) {
  return layer->named_parameters()[name];
}

inline void set(const Layer& layer, const std::string& name, const Tensor& value) {
  at::NoGradGuard no_grad;
  parameter(layer, name).copy_(value);
}

// Every weight that both have under one name, in one shape.
inline void copy_weights(const Layer& to, const Layer& from) {
  const auto own = to->named_parameters();
  for (const auto& p : from->named_parameters())
    if (const auto* same = own.find(p.key()); same && same->sizes() == p.value().sizes())
      set(to, p.key(), p.value());
}

inline KindBlock read_kind(const std::string& kind, const std::string& options) {
  KindBlock block(head_registry(), kind);
  Problems problems;
  block.read(parse_config("{kind: " + kind + options + "}", "test"), "attention", problems);
  problems.raise();
  return block;
}

// A layer as it is before training, in float32.
inline Layer fresh(const std::string& kind, const HeadShape& shape, const std::string& options) {
  return make_heads(read_kind(kind, options), shape);
}

struct Seen {
  Tensor y, map;
  std::map<std::string, std::vector<double>> statistics;
};
// One pass with everything recorded.
inline Seen run(const Layer& layer, const Tensor& x, HeadContext ctx = {}) {
  HeadProbe probe;
  probe.maps = probe.statistics = true;
  probe.js_stride = 1;
  ctx.observer = &probe;
  const auto y = layer->forward(x, ctx).y;
  const int64_t at = layer->shape().layer;
  return {y, probe.layer_maps().at(at), probe.values(at)};
}

// What was streamed of causal self-attention is what its map says. v [B,H,S,e]
inline void require_statistics_of_map(const Layer& layer, const Seen& seen, const Tensor& v) {
  MapContext context;
  context.allowed = allowed_keys(causal().mask, seen.map.size(2), seen.map.size(3), at::kCPU);
  context.causal = true;
  context.value_norm = value_norms(v, parameter(layer, "o.weight"));
  context.output = at::matmul(seen.map, v);
  HeadSums sums(seen.map.size(1));
  add_patterns(sums, seen.map, context);
  const auto expected = head_values(sums);
  for (const char* name : {"entropy", "mean_distance", "value_weighted_norm", "output_norm", "js"})
    for (size_t n = 0; n < expected.at(name).size(); ++n) {
      INFO(name << " " << n);
      REQUIRE(seen.statistics.at(name)[n] == Approx(expected.at(name)[n]).margin(1e-10));
    }
}

}  // namespace headlab::testing
