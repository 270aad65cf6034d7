// What the laws of all kinds of heads are written with.
#pragma once

#include "tests/catch.h"
#include "tests/heads_testing.h"

namespace headlab::testing {

constexpr int64_t B = 2, T = 7;

// One kind, small.
struct Subject {
  std::string kind, options;  // ", map: sink"
  HeadShape shape = small_shape();
  std::shared_ptr<AttentionHeads> heads;
  HeadTraits traits;

  explicit Subject(const std::string& name, const std::string& given = "")
      : kind(name), options(given) {
    heads = make(shape);
    traits = heads->traits();
  }
  std::shared_ptr<AttentionHeads> make(const HeadShape& other) const {
    return make_layer(kind, other, options);
  }
  HeadContext natural() const { return traits.causal ? causal() : HeadContext{}; }
  // With as many keys a query as it can have.
  HeadContext widest() const { return traits.bidirectional ? HeadContext{} : causal(); }
  Tensor y(const Tensor& x, const HeadContext& ctx) const { return heads->forward(x, ctx).y; }
};

// By default sigmoid's weights depend on the number of keys, padding included, and mta is mha.
inline std::string options_in_laws(const std::string& kind) {
  if (kind == "mta")
    return ", pre_kernel: [3, 5], post_kernel: [2, 3], pre: true, post: 2, norm: true, gate: head";
  return kind == "sigmoid" ? ", offset: -1.9" : "";
}

// What turns scores into weights, in kinds that leave it open.
inline std::vector<std::string> maps_in_laws(const std::string& kind) {
  const std::vector<std::string> maps{"entmax",
                                      "{kind: entmax, learn_alpha: true}",
                                      "{kind: sigmoid, offset: -1.9, normalize: sqrt}",
                                      "softpick",
                                      "sink",
                                      "{kind: sink, sink: 0.5}"};
  std::vector<std::string> all;
  for (const auto& field : describe_block(*head_registry().options(kind))) {
    if (field.name == "map")
      for (const auto& map : maps) all.push_back(", map: " + map);
    if (field.name == "inner")
      for (const auto& map : maps) all.push_back(", inner: {kind: mha, map: " + map + "}");
  }
  return all;
}

// Runs `law` for every registered kind, and for its combinations with maps, as a section of its
// own.
template <class Law>
inline void for_every_kind(Law law) {
  for (const auto& kind : head_names()) {
    DYNAMIC_SECTION(kind) { law(Subject(kind, options_in_laws(kind))); }
    for (const auto& options : maps_in_laws(kind)) DYNAMIC_SECTION(kind << options) {
        law(Subject(kind, options));
      }
  }
}

// A kind whose traits do not promise the law has none to break.
inline void not_promised() { SUCCEED("not promised"); }

}  // namespace headlab::testing
