#include "experiments/training/generate.h"

#include <limits>

#include "core/torch.h"

namespace headlab {
namespace {

int64_t draw(const Tensor& logits, const SamplingOptions& options, uint64_t step) {
  if (options.temperature == 0) return logits.argmax().item<int64_t>();
  // The largest logit at 0, so that no temperature overflows.
  auto z = logits.to(at::kDouble).cpu();  // [V]
  z = (z - z.max()) / options.temperature;
  if (options.top_k > 0 && options.top_k < z.numel()) {
    const auto least = std::get<0>(z.topk(options.top_k))[options.top_k - 1];
    z = z.masked_fill(z < least, -std::numeric_limits<double>::infinity());
  }
  const CounterRng rng{.seed = options.seed, .step = step, .layer = 0};
  const auto one =
      z.softmax(0).multinomial(1, false, rng.generator(CounterRng::kSampling, at::kCPU));
  return one.item<int64_t>();
}

}  // namespace

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
    cached += std::ssize(fresh);
    ids.push_back(draw(logits, options, static_cast<uint64_t>(step)));
    emit(ids.back());
  }
}

}  // namespace headlab
