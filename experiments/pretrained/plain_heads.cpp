#include "experiments/pretrained/plain_heads.h"

#include <fmt/format.h>

#include <cmath>

#include "core/gate_target.h"
#include "core/torch.h"
#include "experiments/models/site_heads.h"
#include "experiments/models/stack_options.h"
#include "experiments/pretrained/published_names.h"

namespace headlab {
namespace {

// How a layer was built, before any head of it was pruned.
struct BuiltLayer {
  HeadShape shape;
  KindBlock options;
};

BuiltLayer built_layer(const ModelOptions& model, const std::string& site, int64_t layer) {
  for (const auto& stack : model.stacks()) {
    if (stack->site() == site) return {stack->shape(layer), stack->attention_of(layer)};
    if (stack->cross() && site == kCrossSite) return {stack->cross_shape(layer), *stack->cross()};
  }
  TORCH_CHECK(false, "no stack has the site ", site);
}

class PlainLayer {
 public:
  PlainLayer(const std::string& site, int64_t layer, AttentionHeads& heads, const BuiltLayer& built)
      : heads_(heads), shape_(built.shape), gates_(at::ones({heads.heads()}, at::kDouble)) {
    auto options = built.options.write();
    const auto gates = heads.learned_gates();
    const bool gated = heads.kind() == "gated" && gates.test.defined();
    if (gated) {
      inner_ = "inner.";
      options = *options.find("inner");
      gates_.index_put_({at::tensor(gates.heads, at::kLong)}, gates.test.cpu().to(at::kDouble));
    }
    const auto* kind = options.find("kind");
    if ((heads.kind() != "mha" && !gated) || (kind && kind->text != "mha"))
      throw ConfigError(fmt::format(
          "{}{} has '{}' heads. Published layouts have places for 'mha' heads, and 'gated' ones "
          "around these; headlab convert makes other kinds of 'mha', and 'mha' of no other kind. "
          "The run's ckpt/last/model.safetensors has the weights, named as the kind names them; "
          "headlab forward computes what the model makes of any input",
          site == kSelfSite ? "layer " : site + " of layer ", layer,
          gated && kind ? heads.kind() + "' around '" + kind->text : heads.kind()));
    if (options.find("map"))
      throw ConfigError(
          fmt::format("{}{} has another map than the softmax, published layouts know no other",
                      site == kSelfSite ? "layer " : site + " of layer ", layer));
    if (const auto* scale = options.find("scale"); scale && !scale->text.empty())
      scale_ = std::stod(scale->text) * std::sqrt(static_cast<double>(shape_.head_dim));
  }

  // Replaces what stands under `path` in `weights`.
  void put(const std::string& path, NamedTensors& weights) const {
    NamedTensors own;
    for (auto item = weights.begin(); item != weights.end();) {
      if (!item->first.starts_with(path)) {
        ++item;
        continue;
      }
      const auto name = item->first.substr(path.size());
      if (name.starts_with(inner_)) own[name.substr(inner_.size())] = item->second;
      item = weights.erase(item);
    }
    const auto rows = alive_rows();
    const auto kv_rows = rows_of_kv(own);
    const int64_t group = shape_.heads / shape_.kv_heads;
    const auto wide = [&](const std::string& name, int64_t heads, bool kv, double factor) {
      const auto& from = own.at(name);
      auto to = zeros_like(from, 0, heads);
      for (const auto& [row, head] : rows)
        rows_of(to, 0, kv ? head / group : head)
            .copy_(rows_of(from, 0, kv ? kv_rows.at(row) : row) * factor);
      return to;
    };
    for (const std::string part : {"weight", "bias"}) {
      if (!own.contains("q." + part)) continue;
      const double scale = own.contains("q_norm.weight") ? 1 : scale_;
      const auto take = [&](const char* projection, int64_t heads, bool kv, double factor) {
        const auto name = fmt::format("{}.{}", projection, part);
        weights[path + name] = wide(name, heads, kv, factor);
      };
      take("q", shape_.heads, false, scale);
      for (const char* name : {"k", "v"}) take(name, shape_.kv_heads, true, 1);
    }
    const auto& from = own.at("o.weight");
    auto& to = weights[path + "o.weight"] = zeros_like(from, 1, shape_.heads);
    for (const auto& [row, head] : rows)
      rows_of(to, 1, head).copy_(rows_of(from, 1, row) * gates_[head].item<double>());
    for (const std::string name : {"o.bias", "k_norm.weight"})
      if (own.contains(name)) weights[path + name] = own.at(name);
    if (own.contains("q_norm.weight"))
      weights[path + "q_norm.weight"] = own.at("q_norm.weight") * scale_;
  }

 private:
  Tensor zeros_like(const Tensor& t, int64_t dim, int64_t heads) const {
    auto sizes = t.sizes().vec();
    sizes[dim] = heads * shape_.head_dim;
    return at::zeros(sizes, t.options().requires_grad(false));
  }
  Tensor rows_of(const Tensor& t, int64_t dim, int64_t head) const {
    return t.narrow(dim, head * shape_.head_dim, shape_.head_dim);
  }
  // Own row and original index of each head that is alive.
  std::vector<std::pair<int64_t, int64_t>> alive_rows() const {
    std::vector<std::pair<int64_t, int64_t>> rows;
    const auto ids = heads_.head_ids();
    for (const int64_t row : headlab::alive_rows(heads_)) rows.emplace_back(row, ids[row]);
    return rows;
  }
  // Of each own head the row of its keys and values.
  std::vector<int64_t> rows_of_kv(const NamedTensors& own) const {
    std::vector<int64_t> rows(heads_.head_ids().size());
    if (const auto map = own.find("kv_map"); map != own.end()) {
      const auto ids = map->second.to(at::kCPU, at::kLong).contiguous();
      rows.assign(ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + ids.numel());
    } else {
      for (size_t row = 0; row < rows.size(); ++row)
        rows[row] = static_cast<int64_t>(row) / (shape_.heads / shape_.kv_heads);
    }
    return rows;
  }

  AttentionHeads& heads_;
  HeadShape shape_;
  std::string inner_;
  Tensor gates_;  // of all original heads
  double scale_ = 1;
};

}  // namespace

NamedTensors plain_weights(Model& model, const ModelOptions& options) {
  torch::NoGradGuard no_grad;
  auto weights = parameters_and_buffers(model);
  for (auto& [name, tensor] : weights) tensor = tensor.detach();
  for (const auto& site : model.sites())
    for (int64_t l = 0; l < std::ssize(site.layers); ++l)
      PlainLayer(site.name, l, **site.layers[l], built_layer(options, site.name, l))
          .put(model.layer_path(site.name, l) + ".", weights);
  return weights;
}

}  // namespace headlab
