#include "experiments/conversion/to_mla.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/attention/call/masks.h"
#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

// In float64: rows of projections with their biases (undefined: none).
struct Rows {
  Tensor weight, bias;

  // Of what they make of tokens with this moment: [rows,rows].
  Tensor moment(const Tensor& tokens) const {
    const auto column = bias.defined() ? bias : weight.new_zeros({weight.size(0)});
    const auto whole = at::cat({weight, column.unsqueeze(1)}, 1);  // [rows,D+1]
    return whole.mm(tokens).mm(whole.t());
  }
  Rows times(const Tensor& left) const {  // left [m,rows]
    return {left.mm(weight), bias.defined() ? left.mv(bias) : bias};
  }
};

// Keys behind step 2: P k, of which the first r features keep rope.
struct TurnedKeys {
  Tensor P;  // [Hkv d, Hkv d], orthogonal
  int64_t rope = 0;
  double share = 0;
};

// Eigenvectors [n,n] of a symmetric matrix as columns, largest first; the entry of largest size of
// each is positive.
Tensor principal(const Tensor& moment) {
  const auto vectors = std::get<1>(at::linalg_eigh(moment)).flip(1);
  const auto place = vectors.abs().argmax(0, /*keepdim=*/true);
  return vectors * vectors.gather(0, place).sign();
}

class Converter {
 public:
  Converter(const TrainedLayer& layer, const LatentSettings& settings, bool half_first)
      : layer_(layer), half_first_(half_first), asked_(settings) {
    if (layer.attention.kind() != "mha")
      refuse(fmt::format("has '{}' heads; only mha becomes mla", layer.attention.kind()));
    if (layer.weights.contains("head_ids"))
      refuse("was sliced; convert the unpruned checkpoint, then prune again");
    const auto& options = layer.attention.as<MappedOptions>();
    if (options.qk_norm) refuse("qk_norm stands between projections and scores");
    if (options.map.write().kind != ConfigNode::Kind::kNull) refuse("mla has the softmax alone");
    H_ = layer.shape.heads, Hkv_ = layer.shape.kv_heads, d_ = layer.shape.head_dim;
    scale_ = options.scale.value_or(1 / std::sqrt(d_));
    q_ = rows("q"), k_ = rows("k"), v_ = rows("v");
    r_ = layer.demands.rotary ? settings.rope_dim.value_or(d_) : 0;
    check();
  }

  Conversion convert(const Calibration& tokens) const {
    return compress(turn(tokens.before), tokens.turned);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw ConfigError(fmt::format("{}: {}", layer_.name, what));
  }
  Rows rows(const std::string& name) const {
    const auto tensor = [&](const std::string& part) {
      const auto found = layer_.weights.find(name + part);
      return found == layer_.weights.end() ? Tensor()
                                           : found->second.detach().to(at::kCPU, at::kDouble);
    };
    return {tensor(".weight"), tensor(".bias")};
  }

  void check() const {
    if (layer_.demands.rotary && (r_ < 2 || r_ % 2 != 0 || d_ % r_ != 0))
      refuse(fmt::format("rope_dim must be even and divide head_dim {}, is {}", d_, r_));
    if (r_ > 0) {
      const int64_t C = d_ / r_, M = asked_.freqfold;
      if (M % C != 0)
        refuse(fmt::format("freqfold must be a multiple of head_dim / rope_dim = {}, is {}", C, M));
      if (d_ / 2 % M != 0)
        refuse(fmt::format("freqfold must divide the {} frequencies of a head, is {}", d_ / 2, M));
    }
    if (latent() > full())
      refuse(
          fmt::format("kv_rank must be at most {}, all features of keys without rope and of "
                      "values; is {}",
                      full(), latent()));
    if (asked_.q_rank > std::min(H_ * d_, layer_.shape.d_model))
      refuse(fmt::format("q_rank must be at most {}, is {}",
                         std::min(H_ * d_, layer_.shape.d_model), asked_.q_rank));
  }
  int64_t full() const { return 2 * Hkv_ * d_ - r_; }
  int64_t latent() const { return asked_.kv_rank > 0 ? asked_.kv_rank : std::min(4 * d_, full()); }

  // The feature of a kv head that is member 0 or 1 of the pair of frequency f.
  int64_t feature(int64_t head, int64_t f, int64_t member) const {
    return head * d_ + (half_first_ ? f + member * (d_ / 2) : 2 * f + member);
  }

  // Step 2.
  TurnedKeys turn(const Tensor& tokens) const {
    const int64_t all = Hkv_ * d_;
    const auto options = at::TensorOptions(at::kDouble);
    if (r_ == 0) return {at::eye(all, options)};
    const auto k = k_.moment(tokens);  // [Hkv d,Hkv d]
    const int64_t C = d_ / r_, M = asked_.freqfold, kept = M / C, size = M * Hkv_;
    auto P = at::zeros({all, all}, options);
    int64_t free = r_;  // where features without rope go on
    double energy = 0;
    for (int64_t g = 0; g < d_ / (2 * M); ++g) {
      std::vector<int64_t> members[2];  // features in the order (e, head, p)
      for (int64_t member = 0; member < 2; ++member)
        for (int64_t e = 0; e < C; ++e)
          for (int64_t head = 0; head < Hkv_; ++head)
            for (int64_t p = 0; p < kept; ++p)
              members[member].push_back(feature(head, g * M + p * C + e, member));
      auto moment = at::zeros({size, size}, options);
      for (const auto& of : members) {
        const auto features = at::tensor(of, at::kLong);
        moment += k.index_select(0, features).index_select(1, features);
      }
      const auto E = principal(moment);
      for (int64_t member = 0; member < 2; ++member) {
        const auto columns = at::tensor(members[member], at::kLong);
        for (int64_t m = 0; m < size; ++m) {
          const int64_t row = m < kept ? 2 * (g * kept + m) + member : free++;
          P[row].index_copy_(0, columns, E.select(1, m));
        }
      }
      energy += (E.narrow(1, 0, kept) * moment.mm(E.narrow(1, 0, kept))).sum().item<double>();
    }
    return {P, r_, energy / k.diagonal().sum().item<double>()};
  }

  // Steps 3 and 4.
  Conversion compress(const TurnedKeys& turned, const Tensor& tokens) const {
    const int64_t all = Hkv_ * d_, free = all - r_, c = latent();
    const auto rope = turned.P.narrow(0, 0, r_), rest = turned.P.narrow(0, r_, free);
    double ratio = 1;
    if (asked_.balance && free > 0) {
      const auto mean_norm = [&](const Rows& rows, int64_t first) {
        const auto squares = rows.moment(tokens).diagonal().clamp_min(0);
        return squares.narrow(0, first, squares.size(0) - first).sqrt().mean().item<double>();
      };
      ratio = mean_norm(k_.times(rest), 0) / (*asked_.balance * mean_norm(v_, r_));
    }
    const auto down_k = k_.times(rest / ratio);
    const Rows both{at::cat({down_k.weight, v_.weight}),
                    v_.bias.defined() ? at::cat({down_k.bias, v_.bias}) : v_.bias};
    const auto moment = both.moment(tokens);           // [free + all,free + all]
    const auto R = principal(moment).narrow(1, 0, c);  // [free + all,c]
    const auto R_k = R.narrow(0, 0, free) * ratio, R_v = R.narrow(0, free, all);

    Conversion made;
    made.kv_heads = layer_.shape.heads;
    if (r_ > 0) made.rope_share = turned.share;
    made.cache_before = 2 * all, made.cache_after = c + r_;
    made.latent_share =
        (R * moment.mm(R)).sum().item<double>() / moment.diagonal().sum().item<double>();
    put(made, "kv_down", both.times(R.t()));
    if (r_ > 0) put(made, "k_rope", k_.times(rope));
    std::vector<Tensor> of_keys, of_values, of_queries;
    const double a = scale_ * std::sqrt(static_cast<double>(d_ + r_));
    for (int64_t h = 0; h < H_; ++h) {
      const int64_t slot = h / (H_ / Hkv_) * d_;
      const auto U = turned.P.narrow(1, slot, d_).t();  // [d,Hkv d]
      of_keys.push_back(U.narrow(1, r_, free).mm(R_k));
      of_values.push_back(R_v.narrow(0, slot, d_));
      of_queries.push_back(a *
                           at::cat({at::eye(d_, a_double()), U.narrow(1, 0, r_).t()}));  // [d+r,d]
    }
    made.weights["k_up.weight"] = at::cat(of_keys);
    made.weights["v_up.weight"] = at::cat(of_values);
    put_queries(made, of_queries, tokens);
    put(made, "o", rows("o"));
    if (has_bias() && !made.weights.contains("o.bias"))
      made.weights["o.bias"] = at::zeros({layer_.shape.d_model}, a_double());
    made.attention = block();
    const auto type = layer_.weights.at("q.weight").scalar_type();
    for (auto& [name, tensor] : made.weights) tensor = tensor.to(type).contiguous();
    if (const auto alive = layer_.weights.find("alive"); alive != layer_.weights.end())
      made.weights["alive"] = alive->second;
    return made;
  }

  void put_queries(Conversion& made, const std::vector<Tensor>& of_heads,
                   const Tensor& tokens) const {
    const auto left = at::block_diag(of_heads);  // [H(d+r),H d]
    if (asked_.q_rank == 0) return put(made, "q", q_.times(left));
    const auto R = principal(q_.moment(tokens)).narrow(1, 0, asked_.q_rank);  // [H d,q_rank]
    put(made, "q_down", q_.times(R.t()));
    made.weights["q_up.weight"] = left.mm(R);
  }

  bool has_bias() const { return q_.bias.defined() || layer_.weights.contains("o.bias"); }
  // Where any projection has a bias, those that have none get zeros.
  void put(Conversion& made, const std::string& name, const Rows& rows) const {
    made.weights[name + ".weight"] = rows.weight;
    if (rows.bias.defined())
      made.weights[name + ".bias"] = rows.bias;
    else if (has_bias())
      made.weights[name + ".bias"] = at::zeros({rows.weight.size(0)}, a_double());
  }
  static at::TensorOptions a_double() { return at::TensorOptions(at::kDouble); }

  ConfigNode block() const {
    ConfigNode node;
    node.set("kind", write_text("mla"));
    node.set("kv_rank", write_integer(latent()));
    node.set("q_rank", write_integer(asked_.q_rank));
    node.set("nope_dim", write_integer(d_));
    node.set("rope_dim", write_integer(r_));
    node.set("value_dim", write_integer(d_));
    node.set("norm", write_bool(false));
    node.set("bias", write_bool(has_bias()));
    node.set("q_bias", write_bool(has_bias() && asked_.q_rank == 0));
    return node;
  }

  const TrainedLayer& layer_;
  bool half_first_;
  LatentSettings asked_;
  int64_t H_ = 0, Hkv_ = 0, d_ = 0, r_ = 0;
  double scale_ = 1;
  Rows q_, k_, v_;
};

}  // namespace

Tensor token_moment(const Tensor& x, const Tensor& length) {
  const auto within = within_length(length, x.size(1), x.device());  // [B,T]
  auto tokens = x.detach().to(at::kDouble);
  tokens = at::constant_pad_nd(tokens, {0, 1}, 1);  // [B,T,D+1]
  if (within.defined()) tokens = tokens * within.unsqueeze(2);
  const auto flat = tokens.flatten(0, 1);
  return flat.t().mm(flat).to(at::kCPU);
}

Conversion to_mla(const TrainedLayer& layer, const LatentSettings& settings,
                  const Calibration& tokens, bool half_first) {
  return Converter(layer, settings, half_first).convert(tokens);
}

}  // namespace headlab
