// Times one layer of a kind of heads: a training step, a forward pass, and one token that is
// decoded.
//
//   headlab_bench_layers KIND [SECONDS]   prints train, forward and decode [ms], and peak [MB]
//
// Float32 on one thread, at the size of configs/char_mha.yaml. Each figure is the shortest of all
// passes that fit in SECONDS (default 0.4). "-": the kind cannot do that.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <limits>
#include <memory>
#include <string>

#include "core/head_kinds.h"
#include "core/torch.h"

namespace {

using namespace headlab;

constexpr int64_t kBatch = 12, kTokens = 64, kPrompt = 32;

HeadShape shape() {
  HeadShape s;
  s.d_model = 128;
  s.heads = s.kv_heads = 4;
  s.head_dim = 32;
  s.layers = 4;
  s.layer = 1;
  s.context = kTokens;
  return s;
}

// The shortest of the passes, in milliseconds.
template <class Pass>
double shortest(double seconds, Pass pass) {
  using Clock = std::chrono::steady_clock;
  const auto milliseconds = [](Clock::duration time) {
    return std::chrono::duration<double, std::milli>(time).count();
  };
  double best = std::numeric_limits<double>::infinity();
  for (const auto start = Clock::now(); milliseconds(Clock::now() - start) < 1e3 * seconds;) {
    const auto before = Clock::now();
    pass();
    best = std::min(best, milliseconds(Clock::now() - before));
  }
  return best;
}

struct Layer {
  std::shared_ptr<AttentionHeads> heads;
  HeadContext context;

  explicit Layer(const std::string& kind) {
    KindBlock block(head_registry(), kind);
    Problems problems;
    block.read(parse_config("{kind: " + kind + "}", "bench"), "attention", problems);
    problems.raise();
    torch::manual_seed(1);
    heads = make_heads(block, shape());
    context.mask.causal = heads->traits().causal;
  }
};

double training_step(const Layer& layer, double seconds) {
  const auto x = at::randn({kBatch, kTokens, 128}).requires_grad_();
  layer.heads->train();
  return shortest(seconds, [&] {
    const auto out = layer.heads->forward(x, layer.context);
    auto loss = out.y.square().mean();
    for (const auto& aux : out.aux) loss = loss + aux.value;
    loss.backward();
    layer.heads->zero_grad();
    layer.heads->after_step();
  });
}

double forward_pass(const Layer& layer, double seconds) {
  const at::NoGradGuard no_grad;
  layer.heads->eval();
  const auto x = at::randn({kBatch, kTokens, 128});
  return shortest(seconds, [&] { layer.heads->forward(x, layer.context); });
}

// Of the tokens behind a prompt, one at a time; their mean.
double decoded_token(const Layer& layer, double seconds) {
  const at::NoGradGuard no_grad;
  layer.heads->eval();
  const auto x = at::randn({1, kTokens, 128});
  const auto decode = [&](int64_t last) {
    LayerCache cache;
    auto context = layer.context;
    context.cache = &cache;
    layer.heads->forward(x.narrow(1, 0, kPrompt), context);
    for (int64_t t = kPrompt; t < last; ++t) layer.heads->forward(x.narrow(1, t, 1), context);
  };
  const double prompt = shortest(seconds / 4, [&] { decode(kPrompt); });
  const double all = shortest(seconds, [&] { decode(kTokens); });
  return (all - prompt) / (kTokens - kPrompt);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "headlab_bench_layers KIND [SECONDS]\n");
    return 2;
  }
  try {
    at::set_num_threads(1);
    const double seconds = argc > 2 ? std::stod(argv[2]) : 0.4;
    const Layer layer(argv[1]);
    const double train = training_step(layer, seconds), forward = forward_pass(layer, seconds);
    std::printf("%.5f %.5f ", train, forward);
    if (layer.heads->traits().decodes)
      std::printf("%.5f ", decoded_token(layer, seconds));
    else
      std::printf("- ");
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    std::printf("%.1f\n", static_cast<double>(used.ru_maxrss) / 1024);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "headlab_bench_layers: %s\n", error.what());
    return 1;
  }
  return 0;
}
