#include "core/attention/attend_rows.h"

#include <ATen/Parallel.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <limits>

#include "core/heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kRowsPerChunk = 96;  // of causal or windowed rows, which differ in their keys

// Chosen rows of one example and head, ascending, and the keys that some of them may see.
struct Chunk {
  int64_t b, h;
  Tensor rows;  // [n] int64
  int64_t key_first, key_end;
};

// Which rows attend to which keys. Held by the autograd graph.
struct RowPlan : torch::CustomClassHolder {
  bool causal;
  int64_t window, T, S;
  double scale;
  std::vector<Chunk> chunks;  // by example and head
  std::vector<size_t> heads;  // where in `chunks` those of each (b, h) start, and their end
  // What is added to a score at distance j - place = -(S-1) .. S-1: 0, or -infinity where hidden;
  // undefined: every key of a chunk is seen.
  Tensor line;

  RowPlan(const Tensor& chosen, int64_t keys, const HeadContext& ctx, double factor,
          at::ScalarType type)
      : causal(ctx.mask.causal),
        window(ctx.mask.window),
        T(chosen.size(2)),
        S(keys),
        scale(factor) {
    Tensor key_length;
    if (ctx.mask.key_length.defined()) key_length = ctx.mask.key_length.to(at::kCPU, at::kLong);
    const auto dense = chosen.contiguous();
    const bool* row = dense.const_data_ptr<bool>();
    for (int64_t b = 0; b < chosen.size(0); ++b) {
      const int64_t length = key_length.defined() ? key_length[b].item<int64_t>() : S;
      for (int64_t h = 0; h < chosen.size(1); ++h, row += T) {
        heads.push_back(chunks.size());
        cut(b, h, row, length);
      }
    }
    heads.push_back(chunks.size());
    if (!causal && window == 0) return;
    const auto distance = at::arange(-(S - 1), S);
    auto seen = causal ? distance <= 0 : distance.abs() < window;
    if (causal && window > 0) seen = seen & (distance > -window);
    line = at::zeros(distance.sizes(), type).masked_fill(seen.logical_not(), -kInfinity);
  }

  int64_t place(int64_t t) const { return S - T + t; }

  // Rows that see none of the `length` keys are left out: they stay 0.
  void cut(int64_t b, int64_t h, const bool* chosen, int64_t length) {
    std::vector<int64_t> rows;
    int64_t key_first = 0, key_end = 0;
    auto close = [&] {
      if (!rows.empty()) chunks.push_back({b, h, at::tensor(rows, at::kLong), key_first, key_end});
      rows.clear();
    };
    for (int64_t t = 0; t < T; ++t) {
      if (!chosen[t]) continue;
      const int64_t first = window > 0 ? std::max<int64_t>(0, place(t) - window + 1) : 0;
      int64_t end = length;
      if (causal) end = std::min(end, place(t) + 1);
      if (!causal && window > 0) end = std::min(end, place(t) + window);
      if (first >= end) continue;
      if (rows.empty()) key_first = first;
      key_end = end;  // ascending, as `first` is
      rows.push_back(t);
      if ((causal || window > 0) && std::ssize(rows) == kRowsPerChunk) close();
    }
    close();
  }

  // Added to a chunk's scores: [1,1,n,m].
  std::optional<Tensor> bias(const Chunk& chunk) const {
    if (!line.defined()) return std::nullopt;
    // The row of a place is a window of the line.
    const auto windows =
        line.slice(0, chunk.key_first).unfold(0, chunk.key_end - chunk.key_first, 1);
    const auto rows = windows.index_select(0, T - 1 - chunk.rows);
    return rows.view({1, 1, rows.size(0), rows.size(1)});
  }
};

// [B,H,T,d] -> rows of a chunk [1,1,n,d].
Tensor pick(const Tensor& x, const Chunk& chunk) {
  return x[chunk.b][chunk.h].index_select(0, chunk.rows).unsqueeze(0).unsqueeze(0);
}

// rows [1,1,n,d] of a chunk into x [B,H,T,d].
void put(const Tensor& x, const Chunk& chunk, const Tensor& rows) {
  x[chunk.b][chunk.h].index_copy_(0, chunk.rows, rows[0][0]);
}

// [B,H,S,d] -> the keys of a chunk [1,1,m,d].
Tensor keys_of(const Tensor& k, const Chunk& chunk) {
  return k.narrow(0, chunk.b, 1).narrow(1, chunk.h, 1).slice(2, chunk.key_first, chunk.key_end);
}

// Zeros [B,H,T,d], laid out as torch's fused attention lays out its output.
Tensor zero_rows(const Tensor& like) {
  return at::zeros({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options())
      .transpose(1, 2);
}

// torch's fused attention on the CPU, chunk by chunk. An autograd function of its own, because the
// graph of the chunks would keep their masks and sum gradients of whole tensors.
class AttendRows : public torch::autograd::Function<AttendRows> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& given_q,
                        const Tensor& given_k, const Tensor& given_v,
                        const c10::intrusive_ptr<RowPlan>& plan) {
    // Other threads know nothing of this one's being without gradients.
    const auto q = given_q.detach(), k = given_k.detach(), v = given_v.detach();
    const auto out = zero_rows(q);  // [B,H,T,d]
    const auto precise = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const auto lse = at::zeros(q.sizes().slice(0, 3), q.options().dtype(precise));  // [B,H,T]
    at::parallel_for(0, std::ssize(plan->chunks), 1, [&](int64_t begin, int64_t end) {
      at::NoGradGuard no_grad;
      for (int64_t n = begin; n < end; ++n) {
        const auto& chunk = plan->chunks[n];
        const auto [rows, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
            pick(q, chunk), keys_of(k, chunk), keys_of(v, chunk), 0, false, plan->bias(chunk),
            plan->scale);
        put(out, chunk, rows);
        lse[chunk.b][chunk.h].index_copy_(0, chunk.rows, sums[0][0]);
      }
    });
    ctx->save_for_backward({given_q, given_k, given_v, out, lse});
    ctx->saved_data["plan"] = at::IValue::make_capsule(plan);
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    auto saved = ctx->get_saved_variables();
    for (auto& t : saved) t = t.detach();
    const auto &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &lse = saved[4];
    const auto held = ctx->saved_data["plan"].toCapsule();
    const auto& plan = static_cast<const RowPlan&>(*held);
    const auto g = gradients[0].detach();
    const auto for_q = zero_rows(q), for_k = at::zeros_like(k), for_v = at::zeros_like(v);
    // A head's chunks meet in its keys: one after the other.
    at::parallel_for(0, std::ssize(plan.heads) - 1, 1, [&](int64_t begin, int64_t end) {
      at::NoGradGuard no_grad;
      for (size_t n = plan.heads[begin]; n < plan.heads[end]; ++n) {
        const auto& chunk = plan.chunks[n];
        const auto sums = lse[chunk.b][chunk.h].index_select(0, chunk.rows).view({1, 1, -1});
        const auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
            pick(g, chunk), pick(q, chunk), keys_of(k, chunk), keys_of(v, chunk), pick(out, chunk),
            sums, 0, false, plan.bias(chunk), plan.scale);
        put(for_q, chunk, gq);
        keys_of(for_k, chunk).add_(gk);
        keys_of(for_v, chunk).add_(gv);
      }
    });
    return {for_q, for_k, for_v, {}};
  }
};

// Rows `list` [B,H,n] of a tensor that broadcasts to [B,H,T,S].
Tensor rows_of(const Tensor& x, const Tensor& list, int64_t T, int64_t S) {
  if (!x.defined() || x.dim() < 2 || x.size(-2) == 1) return x;
  const int64_t B = list.size(0), H = list.size(1), n = list.size(2);
  return x.expand({B, H, T, S}).gather(2, list.unsqueeze(3).expand({B, H, n, S}));
}

// Any mask and bias, with dropout and on any device: attend() on the gathered rows.
Tensor attend_gathered(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& chosen,
                       const HeadContext& ctx, double scale) {
  const int64_t B = q.size(0), H = q.size(1), T = q.size(2), S = k.size(2), d = q.size(3);
  const int64_t n = chosen.sum(-1).max().item<int64_t>();
  if (n == 0) return at::zeros_like(q);
  // The chosen rows first, each list filled up with rows that are not chosen.
  const auto list =
      std::get<1>(at::sort(chosen.logical_not(), /*stable=*/true, -1, /*descending=*/false))
          .narrow(2, 0, n);  // [B,H,n]
  auto rows = ctx;
  rows.mask = {};
  rows.mask.allowed = rows_of(allowed_keys(ctx.mask, T, S, q.device()), list, T, S);
  rows.bias = rows_of(ctx.bias, list, T, S);
  if (ctx.position_bias) {
    const auto bias = rows_of(biases_by_pair(ctx, T, S), list, T, S);  // [B,H,n,S]
    rows.bias = rows.bias.defined() ? rows.bias + bias : bias;
    rows.position_bias = nullptr;
  }
  rows.probe = nullptr;
  const auto index = list.unsqueeze(3).expand({B, H, n, d});
  const auto out = attend(q.gather(2, index), k, v, rows, scale);  // [B,H,n,d]
  const auto real = chosen.gather(2, list).unsqueeze(3);
  return at::zeros_like(q).scatter(2, index, out.masked_fill(real.logical_not(), 0));  // [B,H,T,d]
}

// torch's fused attention with a mask that a chunk makes for itself.
bool fused_serves(const Tensor& q, const HeadContext& ctx) {
  return q.is_cpu() && ctx.dropout == 0 && ctx.backend != Backend::kEager && !ctx.bias.defined() &&
         !ctx.position_bias && !ctx.mask.allowed.defined();
}

// The context of `count` heads from `first` on, of H, with keys and values for each of them.
HeadContext context_of_heads(const HeadContext& ctx, int64_t first, int64_t count, int64_t H) {
  auto narrowed = [&](const Tensor& t) {  // [.,H,T,S]
    if (!t.defined() || t.dim() < 3 || t.size(-3) == 1) return t;
    return t.narrow(-3, first, count);
  };
  auto own = ctx;
  const auto ids = ctx.head_ids.defined() ? ctx.head_ids : at::arange(H, ctx.positions.options());
  own.head_ids = ids.narrow(0, first, count);
  own.kv_map = Tensor();
  own.mask.allowed = narrowed(ctx.mask.allowed);
  own.bias = narrowed(ctx.bias);
  own.probe = nullptr;
  return own;
}

}  // namespace

Tensor attend_rows(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& chosen,
                   int64_t first, const HeadContext& ctx, double scale) {
  if (q.numel() == 0) return q;
  const int64_t H = q.size(1), rest = H - first;
  const auto keys = repeat_kv(k, ctx, H), values = repeat_kv(v, ctx, H);  // [B,H,S,d]
  auto own = context_of_heads(ctx, first, rest, H);
  // Dropout that is not that of the first heads once more.
  own.rng.seed = ctx.rng.bits(CounterRng::kAttentionDropout, 1);
  const auto last_q = q.narrow(1, first, rest), last_k = keys.narrow(1, first, rest),
             last_v = values.narrow(1, first, rest), rows = chosen.narrow(1, first, rest);
  const auto some = fused_serves(q, ctx)
                        ? AttendRows::apply(last_q, last_k, last_v,
                                            c10::make_intrusive<RowPlan>(rows, k.size(2), ctx,
                                                                         scale, q.scalar_type()))
                        : attend_gathered(last_q, last_k, last_v, rows, own, scale);
  if (first == 0) return some;
  const auto all = attend(q.narrow(1, 0, first), keys.narrow(1, 0, first),
                          values.narrow(1, 0, first), context_of_heads(ctx, 0, first, H), scale);
  // Joined in the layout in which the output projection reads them.
  return at::cat({all.transpose(1, 2), some.transpose(1, 2)}, 2).transpose(1, 2);  // [B,H,T,d]
}

bool rows_pay(const Tensor& q, const HeadContext& ctx, double share) {
  constexpr int64_t kFewestRows = 256;
  constexpr double kLargestShare = 0.7;
  return fused_serves(q, ctx) && q.size(2) >= kFewestRows && share <= kLargestShare;
}

}  // namespace headlab
