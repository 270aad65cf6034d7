// What the tests of single kinds share: looking into a layer and setting its weights.
#pragma once

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
  for (const auto& p : from->named_parameters())
    if (const auto* own = to->named_parameters().find(p.key());
        own && own->sizes() == p.value().sizes())
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
  ctx.probe = &probe;
  const auto y = layer->forward(x, ctx).y;
  const int64_t at = layer->shape().layer;
  return {y, probe.layer_maps().at(at), probe.values(at)};
}

}  // namespace headlab::testing
