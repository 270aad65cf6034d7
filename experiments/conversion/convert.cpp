#include "experiments/conversion/convert.h"

#include <fmt/format.h>

#include <cmath>

#include "core/projected_heads.h"
#include "core/torch.h"
#include "experiments/conversion/head_alignment.h"
#include "experiments/conversion/parafac.h"

namespace headlab {
namespace {

void refuse(const TrainedLayer& layer, const std::string& what) {
  throw ConfigError(fmt::format("{}: {}", layer.name, what));
}

const MappedOptions& mha_of(const TrainedLayer& layer) {
  if (layer.attention.kind() != "mha")
    refuse(layer, fmt::format("has '{}' heads; only mha can be converted", layer.attention.kind()));
  if (layer.weights.contains("head_ids"))
    refuse(layer, "was sliced; convert the unpruned checkpoint, then prune again");
  return layer.attention.as<MappedOptions>();
}

// All floating-point tensors in float64 on the CPU.
NamedTensors widened(const TrainedLayer& layer) {
  NamedTensors wide;
  for (const auto& [name, tensor] : layer.weights)
    wide[name] = tensor.is_floating_point() ? tensor.detach().to(at::kCPU, at::kDouble)
                                            : tensor.detach().to(at::kCPU);
  return wide;
}

NamedTensors narrowed(NamedTensors weights, const TrainedLayer& layer) {
  const auto type = layer.weights.at("q.weight").scalar_type();
  for (auto& [name, tensor] : weights)
    if (tensor.is_floating_point()) tensor = tensor.to(type).contiguous();
  return weights;
}

// One kv head for each head: [Hkv*d, ...] -> [H*d, ...].
Tensor for_each_head(const Tensor& kv, const HeadShape& shape) {
  return kv.unflatten(0, {shape.kv_heads, -1})
      .repeat_interleave(shape.heads / shape.kv_heads, 0)
      .flatten(0, 1);
}

ConfigNode collaborative_block(const MappedOptions& old, int64_t shared_dim) {
  const auto biases = old.projections();
  ConfigNode node;
  node.set("kind", write_text("collaborative"));
  node.set("shared_dim", write_integer(shared_dim));
  node.set("content_bias", write_bool(biases.qkv_bias));
  node.set("scale", old.scale ? write_number(*old.scale) : write_text("head"));
  node.set("v_bias", write_bool(biases.qkv_bias));
  node.set("o_bias", write_bool(biases.o_bias));
  if (const auto map = old.map.write(); map.kind != ConfigNode::Kind::kNull) node.set("map", map);
  return node;
}

// Relative error of k and v when the heads of each group share their mean.
double merging_error(const NamedTensors& weights, const NamedTensors& merged, int64_t kv_heads,
                     int64_t groups) {
  double apart = 0, whole = 0;
  for (const char* name : {"k.weight", "k.bias", "v.weight", "v.bias"}) {
    if (!weights.contains(name)) continue;
    const auto& old = weights.at(name);
    const auto mean = merged.at(name).unflatten(0, {groups, -1});
    const auto shared = mean.repeat_interleave(kv_heads / groups, 0).flatten(0, 1);
    apart += (old - shared).square().sum().item<double>();
    whole += old.square().sum().item<double>();
  }
  return apart == 0 ? 0 : std::sqrt(apart / whole);
}

void check_groups(const TrainedLayer& layer, int64_t kv_heads) {
  mha_of(layer);
  const int64_t have = layer.shape.kv_heads;
  if (kv_heads >= have || have % kv_heads != 0)
    refuse(layer, fmt::format("has {} kv heads, which do not merge into {}; choose a smaller "
                              "divisor",
                              have, kv_heads));
}

Conversion merged(const TrainedLayer& layer, NamedTensors weights, int64_t kv_heads) {
  Conversion made;
  made.kv_heads = kv_heads;
  made.weights = weights;
  for (const char* name : {"k.weight", "k.bias", "v.weight", "v.bias"})
    if (const auto found = made.weights.find(name); found != made.weights.end())
      found->second = mean_of_groups(found->second, kv_heads, layer.shape.head_dim);
  made.error = merging_error(weights, made.weights, layer.shape.kv_heads, kv_heads);
  made.weights = narrowed(std::move(made.weights), layer);
  return made;
}

}  // namespace

NamedTensors take_under(NamedTensors& tensors, const std::string& prefix) {
  NamedTensors taken;
  for (auto node = tensors.lower_bound(prefix);
       node != tensors.end() && node->first.starts_with(prefix); node = tensors.erase(node))
    taken[node->first.substr(prefix.size())] = node->second;
  return taken;
}

Tensor mean_of_groups(const Tensor& kv, int64_t groups, int64_t head_dim) {
  return kv.unflatten(0, {groups, -1, head_dim}).mean(1).flatten(0, 1);
}

Conversion to_collaborative(const TrainedLayer& layer, std::optional<int64_t> shared_dim,
                            int64_t random_starts) {
  const auto& options = mha_of(layer);
  const auto& shape = layer.shape;
  if (layer.demands.rotary)
    refuse(layer,
           "rotary positions turn queries and keys head by head, shared features cannot; only "
           "models with other positions can become collaborative");
  if (options.qk_norm)
    refuse(layer, "qk_norm stands between projections and scores, so they cannot be factorised");
  const int64_t full = shape.heads * shape.head_dim, R = shared_dim.value_or(full);
  if (R < 1 || R > full)
    refuse(layer,
           fmt::format("shared_dim must lie in 1 .. {}, where the copy is exact; is {}", full, R));

  auto old = widened(layer);
  const auto q = old.at("q.weight");                        // [H*d,D]
  const auto k = for_each_head(old.at("k.weight"), shape);  // [H*d,D]
  const auto q_heads = q.unflatten(0, {shape.heads, -1});   // [H,d,D]
  const auto k_heads = k.unflatten(0, {shape.heads, -1});   // [H,d,D]
  Conversion made;
  made.attention = collaborative_block(options, R);
  made.kv_heads = shape.heads;
  auto& w = made.weights;
  if (R == full) {
    w["q.weight"] = q, w["k.weight"] = k;
    w["mixing"] = at::eye(shape.heads, q.options()).repeat_interleave(shape.head_dim, 1);
  } else {
    const auto cp = parafac(q_heads, k_heads, R, random_starts);
    w["q.weight"] = cp.a.t(), w["k.weight"] = cp.b.t(), w["mixing"] = cp.m;
    made.error = cp_error(q_heads, k_heads, cp);
  }
  if (options.projections().qkv_bias) {
    const auto bias = old.at("q.bias").view({shape.heads, 1, shape.head_dim});
    w["content_bias.weight"] = at::matmul(bias, k_heads).squeeze(1);  // [H,D]
    w["v.bias"] = for_each_head(old.at("v.bias"), shape);
  }
  w["v.weight"] = for_each_head(old.at("v.weight"), shape);
  for (const char* name : {"o.weight", "o.bias", "alive", "sink", "alpha"})
    if (auto kept = take(old, name); kept.defined()) w[name] = kept;
  w = narrowed(std::move(w), layer);
  return made;
}

Conversion to_grouped(const TrainedLayer& layer, int64_t kv_heads) {
  check_groups(layer, kv_heads);
  return merged(layer, widened(layer), kv_heads);
}

Conversion to_grouped_aligned(const TrainedLayer& layer, int64_t kv_heads) {
  check_groups(layer, kv_heads);
  if (layer.demands.bias)
    refuse(layer,
           "its position bias differs by head, so heads cannot change places; convert without "
           "--align");
  const bool turn_keys = !layer.demands.rotary && !mha_of(layer).qk_norm;
  auto aligned = align_heads(widened(layer), layer.shape, kv_heads, turn_keys);
  auto made = merged(layer, std::move(aligned.weights), kv_heads);
  made.order = std::move(aligned.order);
  return made;
}

}  // namespace headlab
