#include "core/attention/paths/flash.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "core/attention/paths/held.h"
#include "core/attention/paths/thresholds.h"
#include "core/torch.h"

namespace headlab {
namespace {

using Maybe = std::optional<Tensor>;  // autograd functions want undefined arguments marked

struct Span {
  int64_t first, end;
  int64_t size() const { return std::max<int64_t>(0, end - first); }
};

// Rows of some examples that all see a key, and the keys that some of them see.
struct Tile {
  Span examples, rows, keys;
  Maybe bias;  // [1,H or 1,rows,keys] added to the scores: -infinity where hidden
};

// Who sees whom in a call, and with what bias.
class Layout {
 public:
  // apart: tiles are small, even where all examples and rows are alike.
  Layout(const AttentionCall& call, bool apart)
      : B_(call.q.size(0)), T_(call.q.size(2)), S_(call.k.size(2)) {
    back_ = std::min(call.reach.back, S_ + T_), ahead_ = std::min(call.reach.ahead, S_ + T_);
    lengths_.assign(B_, S_);
    if (call.key_length.defined()) {
      const auto given = call.key_length.to(at::kCPU, at::kLong).contiguous();
      for (int64_t b = 0; b < B_; ++b)
        lengths_[b] = std::clamp<int64_t>(given.const_data_ptr<int64_t>()[b], 0, S_);
    }
    longest_ = *std::max_element(lengths_.begin(), lengths_.end());
    apart_ = apart || std::any_of(lengths_.begin(), lengths_.end(),
                                  [&](int64_t length) { return length != longest_; });
    const auto& bias = call.distance_bias;
    if (bias.defined() || back_ < S_ - 1 || ahead_ < T_ - 1) line_ = line(bias, call.q.options());
    rows_per_tile_ = line_.defined() || apart ? threshold::kFlashRows : T_;
  }

  // Everything is one tile.
  bool whole() const {
    const Span all{0, T_};
    return !apart_ && rows_per_tile_ >= T_ && seeing(all, longest_).size() == T_ &&
           keys_of(all, longest_).size() == S_;
  }

  // Tiles of different examples side by side, those of one example in the order of their rows.
  void each(const std::function<void(const Tile&)>& work) const {
    for (int64_t t = 0; t < T_; t += rows_per_tile_) {
      const auto rows = seeing({t, std::min(T_, t + rows_per_tile_)}, longest_);
      if (rows.size() == 0) continue;
      const Tile all{{0, B_}, rows, keys_of(rows, longest_), bias_of(rows)};
      if (!apart_) {
        work(all);
        continue;
      }
      at::parallel_for(0, B_, 1, [&](int64_t begin, int64_t end) {
        // Other threads know nothing of this one's modes, such as being without gradients.
        const at::AutoDispatchBelowADInplaceOrView below_autograd;
        for (int64_t b = begin; b < end; ++b)
          if (const auto own = of_example(all, b); own.rows.size() > 0) work(own);
      });
    }
  }

  // Where in [.,S+T-1] the distances of a tile begin. In the order of distance there are as many as
  // rows and keys, less one.
  int64_t first_distance(const Tile& tile) const { return T_ - tile.rows.end + tile.keys.first; }

 private:
  int64_t B_, T_, S_, back_, ahead_, longest_, rows_per_tile_;
  std::vector<int64_t> lengths_;  // of the examples
  bool apart_;                    // tiles have one example each
  Tensor line_;                   // [H or 1,S+T-1] added at each distance; undefined: nothing

  Tensor line(const Tensor& bias, const at::TensorOptions& options) const {
    const int64_t n = S_ + T_ - 1;
    const Span seen{std::max<int64_t>(0, S_ - 1 - back_), std::min(n, S_ + ahead_)};
    const auto line = at::full({bias.defined() ? bias.size(0) : 1, n}, kHiddenScore, options);
    const auto inside = line.slice(1, seen.first, seen.end);
    bias.defined() ? inside.copy_(bias.slice(1, seen.first, seen.end)) : inside.zero_();
    return line;
  }

  // Those of the rows that see any of `length` keys: they lie side by side.
  Span seeing(Span rows, int64_t length) const {
    if (length == 0) return {rows.first, rows.first};
    return {std::max(rows.first, T_ - S_ - ahead_), std::min(rows.end, T_ - S_ + length + back_)};
  }

  Span keys_of(Span rows, int64_t length) const {
    return {std::max<int64_t>(0, S_ - T_ + rows.first - back_),
            std::min(length, S_ - T_ + rows.end + ahead_)};
  }

  Maybe bias_of(Span rows) const {
    if (!line_.defined()) return std::nullopt;
    const auto keys = keys_of(rows, longest_);
    const auto distances =
        line_.slice(1, T_ - rows.end + keys.first, T_ - 1 - rows.first + keys.end);
    return distances.unfold(1, keys.size(), 1).flip(1).unsqueeze(0);  // [1,H,rows,keys]
  }

  Tile of_example(const Tile& all, int64_t b) const {
    const auto rows = seeing(all.rows, lengths_[b]);
    const auto keys = keys_of(rows, lengths_[b]);
    Tile own{{b, b + 1}, rows, keys, all.bias};
    if (own.bias && rows.size() > 0)
      own.bias = own.bias->slice(2, rows.first - all.rows.first, rows.end - all.rows.first)
                     .slice(3, keys.first - all.keys.first, keys.end - all.keys.first);
    return own;
  }
};

Tensor part(const Tensor& x, Span examples, Span places) {
  return x.slice(0, examples.first, examples.end).slice(2, places.first, places.end);
}

AttendedRows forward(const AttentionCall& call, const Layout& layout) {
  const int64_t e = call.v.size(3), width = std::max(call.q.size(3), e);
  const auto q = widen(call.q, width), k = widen(call.k, width), v = widen(call.v, width);
  const auto run = [&](const Tile& t) {
    return at::_scaled_dot_product_flash_attention_for_cpu(
        part(q, t.examples, t.rows), part(k, t.examples, t.keys), part(v, t.examples, t.keys), 0,
        /*is_causal=*/false, t.bias, call.scale);
  };
  AttendedRows all;
  if (!layout.whole()) {
    all.out = zero_rows(q);
    all.lse = at::full(q.sizes().slice(0, 3), kHiddenScore, q.options());  // [B,H,T]
  }
  layout.each([&](const Tile& t) {
    const auto [out, lse] = run(t);
    if (layout.whole()) {
      all = {out, lse};
    } else {
      part(all.out, t.examples, t.rows).copy_(out);
      part(all.lse, t.examples, t.rows).copy_(lse);
    }
  });
  return {all.out.narrow(3, 0, e), all.lse};
}

struct Gradients {
  Tensor q, k, v, bias;
};

// By torch's kernels, which have no gradient of lse and none of a bias.
Gradients by_kernels(const AttentionCall& call, const AttendedRows& rows, const Layout& layout,
                     const Tensor& for_out) {
  const int64_t d = call.q.size(3), e = call.v.size(3), width = std::max(d, e);
  const auto q = widen(call.q, width), k = widen(call.k, width), v = widen(call.v, width),
             out = widen(rows.out, width), g = widen(for_out, width);
  Gradients all;
  if (!layout.whole()) all = {zero_rows(q), zero_rows(k), zero_rows(v), {}};
  layout.each([&](const Tile& t) {
    const auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        part(g, t.examples, t.rows), part(q, t.examples, t.rows), part(k, t.examples, t.keys),
        part(v, t.examples, t.keys), part(out, t.examples, t.rows),
        part(rows.lse, t.examples, t.rows), 0, /*is_causal=*/false, t.bias, call.scale);
    if (layout.whole()) {
      all = {gq, gk, gv, {}};
    } else {
      part(all.q, t.examples, t.rows).copy_(gq);
      part(all.k, t.examples, t.keys).add_(gk);
      part(all.v, t.examples, t.keys).add_(gv);
    }
  });
  return {all.q.narrow(3, 0, d), all.k.narrow(3, 0, d), all.v.narrow(3, 0, e), {}};
}

// Sums over the pairs of one distance, ascending: [H,n,m] -> [H,n+m-1].
Tensor diagonals(const Tensor& x) {
  const int64_t H = x.size(0), n = x.size(1), m = x.size(2), w = n + m - 1;
  // In rows of w + 1, of which each begins one to the left, a distance is a column.
  const auto skewed = at::zeros({H, n, w + 1}, x.options());
  skewed.as_strided({H, n, m}, {n * (w + 1), w, 1}, n - 1).copy_(x);
  return skewed.sum(1).narrow(1, 0, w);
}

// From the weights p of a tile, made again for one example at a time. The gradient of the scores is
// p (dOut v^T - sum(dOut out) + dLse). `distances` of a bias that learns, else 0.
Gradients by_weights(const AttentionCall& call, const AttendedRows& rows, const Layout& layout,
                     const Tensor& for_out, const Tensor& for_lse, int64_t distances) {
  const auto &q = call.q, &k = call.k, &v = call.v;
  auto drop = (for_out * rows.out).sum(-1, /*keepdim=*/true);  // [B,H,T,1]
  if (for_lse.defined()) drop.sub_(for_lse.unsqueeze(-1));
  const auto lse = rows.lse.unsqueeze(-1);
  const auto none = at::zeros({}, q.options());
  const auto zeros = [&](at::IntArrayRef sizes) { return at::zeros(sizes, q.options()); };
  const Gradients all{zeros(q.sizes()), zeros(k.sizes()), zeros(v.sizes()),
                      zeros({q.size(0), q.size(1), distances})};  // one an example: order is fixed
  layout.each([&](const Tile& t) {
    const auto of_rows = [&](const Tensor& x) { return part(x, t.examples, t.rows)[0]; };
    const auto of_keys = [&](const Tensor& x) { return part(x, t.examples, t.keys)[0]; };
    const auto tq = of_rows(q), tk = of_keys(k), g = of_rows(for_out);  // [H,n,d], [H,m,d], [H,n,e]
    const auto p = at::baddbmm(t.bias ? (*t.bias)[0] : none, tq, tk.transpose(1, 2), 1, call.scale)
                       .sub_(of_rows(lse))
                       .exp_();  // [H,n,m]
    of_keys(all.v).baddbmm_(p.transpose(1, 2), g);
    const auto s = at::bmm(g, of_keys(v).transpose(1, 2)).sub_(of_rows(drop)).mul_(p);  // [H,n,m]
    of_rows(all.q).baddbmm_(s, tk, 1, call.scale);
    of_keys(all.k).baddbmm_(s.transpose(1, 2), tq, 1, call.scale);
    if (distances > 0)
      all.bias[t.examples.first]
          .narrow(1, layout.first_distance(t), t.rows.size() + t.keys.size() - 1)
          .add_(diagonals(s));
  });
  return {all.q, all.k, all.v, distances > 0 ? all.bias.sum(0) : Tensor()};
}

class Flash : public torch::autograd::Function<Flash> {
 public:
  // rest: the call without q, k, v and the bias.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx,
                                                const Tensor& q, const Tensor& k, const Tensor& v,
                                                const Maybe& bias, const AttentionCall& rest) {
    const auto call = whole(rest, {q, k, v, bias.value_or(Tensor())});
    const auto rows = headlab::forward(call, Layout(call, /*apart=*/false));
    ctx->save_for_backward({q, k, v, call.distance_bias, rows.out, rows.lse});
    hold(ctx, rest);
    ctx->set_materialize_grads(false);  // most calls use no lse
    return {rows.out, rows.lse};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "fused attention has second derivatives on backend eager only");
    const auto saved = ctx->get_saved_variables();
    const auto call = whole(held<AttentionCall>(ctx), saved);
    const AttendedRows rows{saved[4], saved[5]};
    const bool learns = call.distance_bias.defined() && ctx->needs_input_grad(3);
    const auto &for_out = gradients[0], &for_lse = gradients[1];
    const bool kernels = !learns && for_out.defined() && !for_lse.defined();
    const Layout layout(call, /*apart=*/!kernels);
    const auto all = kernels ? by_kernels(call, rows, layout, for_out)
                             : by_weights(call, rows, layout,
                                          for_out.defined() ? for_out : at::zeros_like(rows.out),
                                          for_lse, learns ? call.distance_bias.size(1) : 0);
    return {all.q, all.k, all.v, all.bias, {}};
  }

 private:
  static AttentionCall whole(const AttentionCall& rest, const std::vector<Tensor>& tensors) {
    auto call = rest;
    call.q = tensors[0], call.k = tensors[1], call.v = tensors[2];
    call.distance_bias = tensors[3];
    return call;
  }
};

}  // namespace

Tensor widen(const Tensor& x, int64_t width) {
  if (x.size(-1) < width) return at::constant_pad_nd(x, {0, width - x.size(-1)});
  return x.stride(-1) == 1 ? x : x.contiguous();
}

Tensor zero_rows(const Tensor& like) {
  return at::zeros({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options())
      .transpose(1, 2);
}

bool flash_serves(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto type = q.scalar_type();
  return q.is_cpu() && (type == at::kFloat || type == at::kDouble) && k.scalar_type() == type &&
         v.scalar_type() == type && q.numel() > 0 && k.numel() > 0 && v.numel() > 0;
}

AttendedRows flash_attend(const AttentionCall& call) {
  const auto &q = call.q, k = call.keys(), v = call.values();
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && flash_serves(q, k, v),
              "fused attention: not of q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes(),
              " of this type");
  const int64_t B = q.size(0), H = q.size(1), T = q.size(2), S = k.size(2);
  TORCH_CHECK(k.sizes() == at::IntArrayRef({B, H, S, q.size(3)}) && v.size(0) == B &&
                  v.size(1) == H && v.size(2) == S,
              "fused attention: q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes());
  TORCH_CHECK(call.reach.back >= 0 && call.reach.ahead >= 0, "fused attention: keys from ",
              -call.reach.back, " to ", call.reach.ahead);
  Maybe bias;
  if (const auto& b = call.distance_bias; b.defined()) {
    TORCH_CHECK(b.sizes() == at::IntArrayRef({H, S + T - 1}), "bias by distance ", b.sizes(),
                " for ", H, " heads, ", T, " queries and ", S, " keys");
    bias = b.to(q.scalar_type());
  }
  if (const auto& length = call.key_length; length.defined())
    TORCH_CHECK(length.sizes() == at::IntArrayRef({B}), "key_length ", length.sizes(), " for ", B,
                " examples");
  auto rest = call.without_inputs();
  rest.distance_bias = Tensor();
  const auto both = Flash::apply(q, k, v, bias, rest);
  return {both[0], both[1]};
}

}  // namespace headlab
