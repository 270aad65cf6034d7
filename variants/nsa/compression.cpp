#include "variants/nsa/compression.h"

#include "core/torch.h"

namespace headlab {
namespace {

// Means of blocks, by the sums of the chunks of s tokens that they share.
Tensor means(const Tensor& tokens, int64_t count, int64_t l, int64_t s) {
  const int64_t shifts = l / s;
  const auto chunks = tokens.unflatten(2, {count + shifts - 1, s}).sum(3);  // [B,Hkv,chunks,d]
  auto sum = chunks.narrow(2, 0, count);
  for (int64_t n = 1; n < shifts; ++n) sum = sum + chunks.narrow(2, n, count);
  return sum / static_cast<double>(l);
}

}  // namespace

CompressionImpl::CompressionImpl(const CompressionShape& shape) : shape_(shape) {
  k_ = make_half("k", shape.positions);
  v_ = make_half("v", shape.positions && shape.kind == "mlp");
}

CompressionImpl::Half CompressionImpl::make_half(const std::string& name, bool positions) {
  const auto& [kind, H, d, l, s, f, with_positions] = shape_;
  Half half;
  if (kind == "weighted")  // begins as the mean, as `linear` does
    half.weight = register_parameter(name, at::full({H, l}, 1.0 / static_cast<double>(l)));
  if (kind == "linear")
    half.weight = register_parameter(
        name, (at::eye(d) / static_cast<double>(l)).repeat({H, l, 1}));  // [Hkv,l d,d]
  if (kind == "mlp") {
    half.up = register_module(name + "_up", Linear(l * d, f));
    half.down = register_module(name + "_down", Linear(f, d));
    init_normal(half.up, 0.02);
    init_normal(half.down, 0.02);
  }
  if (positions) half.positions = register_parameter(name + "_positions", at::zeros({H, l, d}));
  return half;
}

std::vector<std::string> CompressionImpl::by_head() const {
  std::vector<std::string> names;
  for (const auto& p : named_parameters(/*recurse=*/false)) names.push_back(p.key());
  return names;
}

std::vector<std::string> CompressionImpl::shared() const {
  std::vector<std::string> names;
  for (const auto& module : named_children())
    for (const auto& p : module.value()->named_parameters())
      names.push_back(module.key() + "." + p.key());
  return names;
}

double CompressionImpl::flops() const {
  const auto H = static_cast<double>(shape_.heads), d = static_cast<double>(shape_.width),
             l = static_cast<double>(shape_.tokens), f = static_cast<double>(shape_.hidden);
  if (shape_.kind == "linear") return 4 * H * l * d * d;
  if (shape_.kind == "mlp") return 4 * H * f * (l * d + d);
  return 4 * H * l * d;
}

Tensor CompressionImpl::compressed(Half& half, const Tensor& tokens, int64_t first, int64_t count) {
  const int64_t l = shape_.tokens, s = shape_.stride;
  if (count <= 0) return tokens.narrow(2, 0, 0);
  const auto seen = tokens.narrow(2, first, (count - 1) * s + l);
  const auto& [weight, positions, up, down] = half;
  if (shape_.kind == "mean") {
    const auto mean = means(seen, count, l, s);
    return positions.defined() ? mean + positions.mean(1, /*keepdim=*/true) : mean;
  }
  const auto blocks = seen.unfold(2, l, s);  // [B,Hkv,count,d,l]
  if (shape_.kind == "weighted") {
    const auto w = weight.unsqueeze(1).unsqueeze(3);  // [Hkv,1,l,1]
    const auto sum = at::matmul(blocks, w).squeeze(4);
    if (!positions.defined()) return sum;
    return sum + at::matmul(weight.unsqueeze(1), positions);  // [Hkv,1,d]
  }
  auto u = blocks.transpose(3, 4);  // [B,Hkv,count,l,d]
  if (positions.defined()) u = u + positions.unsqueeze(1);
  const auto flat = u.flatten(3);  // [B,Hkv,count,l d]
  if (shape_.kind == "linear") return at::matmul(flat, weight);
  return half.down(at::relu(half.up(flat)));
}

}  // namespace headlab
