#include "experiments/inference/generate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/torch.h"
#include "experiments/models/finite_weights.h"
#include "experiments/models/stack_options.h"

namespace headlab {
namespace {

int64_t draw(const Tensor& logits, const SamplingOptions& options, uint64_t step) {
  if (options.temperature == 0) return logits.argmax().item<int64_t>();
  const auto p = likely(logits.cpu(), options.temperature, options.top_k);  // [V]
  const CounterRng rng{.seed = options.seed, .step = step, .layer = 0};
  return p.multinomial(1, false, rng.generator(CounterRng::kSampling, at::kCPU)).item<int64_t>();
}

// Of a cache that has seen so many tokens, by the heads alone: what surrounds them costs more.
int64_t kept_bytes(AttentionHeads& heads, int64_t tokens, int64_t window) {
  constexpr int64_t kAtOnce = 64;
  LayerCache cache;
  HeadContext ctx;
  ctx.mask.causal = true, ctx.mask.window = window, ctx.cache = &cache;
  const auto options = heads.parameters().front().options();
  for (int64_t past = 0; past < tokens; past += kAtOnce)
    heads.forward(at::zeros({1, std::min(kAtOnce, tokens - past), heads.shape().d_model}, options),
                  ctx);
  return cache.bytes();
}

}  // namespace

Tensor likely(const Tensor& logits, double temperature, int64_t top_k) {
  // The largest logit at 0, so that no temperature overflows.
  auto z = logits.to(at::kDouble);
  z = (z - z.amax(-1, /*keepdim=*/true)) / temperature;
  if (top_k > 0 && top_k < z.size(-1)) {
    const auto least = std::get<0>(z.topk(top_k)).select(-1, top_k - 1).unsqueeze(-1);
    z = z.masked_fill(z < least, -std::numeric_limits<double>::infinity());
  }
  return z.softmax(-1);
}

void generate(Model& model, const std::vector<int64_t>& prompt, const SamplingOptions& options,
              const Compute& compute, const std::function<void(int64_t)>& emit) {
  torch::InferenceMode inference;
  model.eval();
  const int64_t context = model.context();
  std::vector<int64_t> ids = prompt;
  std::vector<LayerCache> caches;
  int64_t cached = 0;  // ids that the caches hold
  for (int64_t step = 0; step < options.tokens; ++step) {
    if (!options.cache || cached == context || cached == 0) {
      // The window that ends here; its positions count from 0.
      cached = 0;
      caches.clear();
    }
    const int64_t size = std::ssize(ids);
    const int64_t first = cached == 0 ? std::max<int64_t>(0, size - context) : size - 1;
    const std::vector<int64_t> fresh(ids.begin() + first, ids.end());
    ModelContext ctx{.backend = compute.backend};
    if (options.cache) ctx.caches = &caches;
    const auto input = at::tensor(fresh, at::kLong).unsqueeze(0).to(compute.device);  // [1,n]
    const auto logits = model.forward({input}, ctx).logits[0][-1];                    // [V]
    if (!std::isfinite(logits.max().item<double>()))  // NaN, where there is any
      throw NotFiniteError("generate: the model's predictions are not finite");
    cached += std::ssize(fresh);
    ids.push_back(draw(logits, options, static_cast<uint64_t>(step)));
    if (std::ranges::find(options.ends, ids.back()) != options.ends.end()) return;
    emit(ids.back());
  }
}

std::optional<double> cache_bytes_per_token(Model& model, const ModelOptions& options) {
  torch::InferenceMode inference;
  model.eval();
  const auto stacks = options.stacks();
  const int64_t context = model.context();
  int64_t bytes = 0;
  for (const auto& site : model.sites()) {
    if (!model.writes() || !site.within_ids()) return {};
    const auto stack =
        std::ranges::find(stacks, site.name, [](const auto& s) { return s->site(); });
    for (size_t layer = 0; layer < site.layers.size(); ++layer) {
      auto& heads = **site.layers[layer];
      if (!heads.traits().decodes || !heads.traits().causal) return {};
      bytes += kept_bytes(heads, context, (*stack)->window_of(static_cast<int64_t>(layer)));
    }
  }
  return static_cast<double>(bytes) / static_cast<double>(context);
}

}  // namespace headlab
