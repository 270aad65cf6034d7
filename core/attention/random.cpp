#include "core/attention/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include "core/kernels/attention_rows.h"
#include "core/torch.h"

namespace headlab {

uint64_t mix_bits(uint64_t x) { return mix_word(x); }

uint64_t CounterRng::site_key(std::string_view name) {
  if (name == "self") return 0;
  uint64_t h = 0xCBF29CE484222325ull;  // FNV-1a
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return h;
}

CounterRng CounterRng::seeded() const {
  auto rng = *this;
  if (!seed && step == 0) rng.seed = at::empty({}, at::kLong).random_().item<int64_t>();
  return rng;
}

uint64_t CounterRng::bits(uint64_t stream, uint64_t index) const {
  uint64_t h = mix_bits(seed.value_or(0));
  if (site != 0) h = mix_bits(h ^ site);
  for (uint64_t word : {step, static_cast<uint64_t>(layer), stream, index}) h = mix_bits(h ^ word);
  return h;
}

at::Generator CounterRng::generator(uint64_t stream, const at::Device& device) const {
  const auto own = seeded().bits(stream);
  if (device.is_cpu()) return at::make_generator<at::CPUGeneratorImpl>(own);
  auto generator = at::detail::getCUDAHooks().getNewGenerator(device.index());
  generator.set_current_seed(own);
  return generator;
}

Tensor dropout(const Tensor& x, double p, const CounterRng& rng, uint64_t stream) {
  if (p == 0) return x;
  auto keep = at::empty_like(x, x.options().requires_grad(false), at::MemoryFormat::Contiguous);
  keep.bernoulli_(1 - p, rng.generator(stream, x.device()));
  return x * keep.div_(1 - p);
}

}  // namespace headlab
