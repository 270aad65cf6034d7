// Kinds whose map is a plain softmax never hold it while they train.
#include <algorithm>

#include "tests/catch.h"
#include "tests/heads_testing.h"
#include "tests/peak_memory.h"

using namespace headlab;
using namespace headlab::testing;

namespace {

constexpr int64_t B = 2, T = 512, H = 8;
constexpr int64_t kMap = B * H * T * T * sizeof(float);

Memory training_memory(const std::string& kind, Backend backend) {
  HeadShape shape;
  shape.d_model = 64, shape.heads = shape.kv_heads = H, shape.head_dim = 8;
  shape.context = T;
  const auto layer = make_layer(kind, shape);
  layer->to(at::kFloat);
  layer->train();
  auto x = at::randn({B, T, 64}).requires_grad_();
  HeadContext ctx;
  ctx.mask.causal = layer->traits().causal;
  ctx.backend = backend;
  return memory_of([&] {
    const auto out = layer->forward(x, ctx);
    auto loss = out.y.sum();
    for (const auto& aux : out.aux) loss = loss + aux.value;
    loss.backward();
  });
}

}  // namespace

TEST_CASE("training plain kinds allocates no map of all heads, queries and keys", "[memory]") {
  const auto registered = head_names();
  for (const char* kind :
       {"mha", "collaborative", "mohsa", "moh", "gated", "linformer", "bigbird"}) {
    if (std::find(registered.begin(), registered.end(), kind) == registered.end()) continue;
    INFO(kind);
    REQUIRE(training_memory(kind, Backend::kAuto).largest < kMap);
  }
  REQUIRE(training_memory("mha", Backend::kEager).largest == kMap);
}
