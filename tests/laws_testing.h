// What the laws of all kinds of heads are written with.
#pragma once

#include "tests/catch.h"
#include "tests/heads_testing.h"

namespace headlab::testing {

constexpr int64_t B = 2, T = 7;

// One kind, small.
struct Subject {
  std::string kind;
  HeadShape shape = small_shape();
  std::shared_ptr<AttentionHeads> heads;
  HeadTraits traits;

  explicit Subject(const std::string& name) : kind(name) {
    heads = make_layer(kind, shape);
    traits = heads->traits();
  }
  HeadContext natural() const { return traits.causal ? causal() : HeadContext{}; }
  Tensor y(const Tensor& x, const HeadContext& ctx) const { return heads->forward(x, ctx).y; }
};

// Runs `law` for every registered kind as a section of its own.
template <class Law>
inline void for_every_kind(Law law) {
  for (const auto& kind : head_names()) DYNAMIC_SECTION(kind) {
      law(Subject(kind));
    }
}

// A kind whose traits do not promise the law has none to break.
inline void not_promised() { SUCCEED("not promised"); }

}  // namespace headlab::testing
