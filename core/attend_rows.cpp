#include "core/attend_rows.h"

#include <torch/custom_class.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>

#include "core/heads.h"

namespace headlab {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kRowsPerChunk = 128;

// Chosen rows of every example and head from one rank on in their lists: [B,h,n]. Shorter lists are
// filled up with rows that nobody reads.
struct Chunk {
  Tensor heads;                        // [1,h,1]
  bool every = true;                   // these are all heads
  Tensor from, to;                     // [B,h,n] tokens, filled up with 0 and T
  Tensor places;                       // [B*h*n] places among the keys, filled up with key_first
  Tensor real;                         // [B,h,n,1] bool, what is not filled up; undefined: all
  int64_t key_first = 0, key_end = 0;  // keys that some row may see
};

// How the chosen rows are cut into chunks, so that each needs few keys and few heads more than its
// rows do. Held by the autograd graph.
struct RowPlan : torch::CustomClassHolder {
  bool causal;
  int64_t window, T, S;
  Tensor key_length;  // [B] on the CPU or undefined
  double scale;
  std::vector<Chunk> chunks;

  RowPlan(const Tensor& chosen, int64_t keys, const HeadContext& ctx, double factor)
      : causal(ctx.mask.causal),
        window(ctx.mask.window),
        T(chosen.size(2)),
        S(keys),
        scale(factor) {
    if (ctx.mask.key_length.defined()) key_length = ctx.mask.key_length.to(at::kCPU, at::kLong);
    const auto lists = rows_of_heads(chosen);
    size_t longest = 0;
    for (const auto& list : lists) longest = std::max(longest, list.size());
    for (size_t rank = 0; rank < longest; rank += kRowsPerChunk)
      chunks.push_back(cut(lists, chosen.size(1), rank));
  }

  int64_t place(int64_t t) const { return S - T + t; }
  int64_t first_key(int64_t t) const {
    return window > 0 ? std::max<int64_t>(0, place(t) - window + 1) : 0;
  }
  int64_t end_key(int64_t t) const {
    if (causal) return place(t) + 1;
    return window > 0 ? std::min(S, place(t) + window) : S;
  }

  // The chosen tokens of each (b, h), ascending, but for those that see no key.
  std::vector<std::vector<int64_t>> rows_of_heads(const Tensor& chosen) const {
    const auto on_host = chosen.to(at::kCPU).contiguous();
    const bool* is_chosen = on_host.const_data_ptr<bool>();
    const int64_t H = chosen.size(1);
    std::vector<std::vector<int64_t>> lists(chosen.size(0) * H);
    for (size_t n = 0; n < lists.size(); ++n) {
      const int64_t length = key_length.defined() ? key_length[n / H].item<int64_t>() : S;
      for (int64_t t = 0; t < T; ++t)
        if (is_chosen[n * T + t] && first_key(t) < std::min(length, end_key(t)))
          lists[n].push_back(t);
    }
    return lists;
  }

  Chunk cut(const std::vector<std::vector<int64_t>>& lists, int64_t H, size_t rank) const {
    const int64_t B = static_cast<int64_t>(lists.size()) / H;
    std::vector<int64_t> heads;
    size_t n = 0;
    Chunk chunk;
    chunk.key_first = S;
    for (int64_t h = 0; h < H; ++h) {
      size_t most = 0;
      for (int64_t b = 0; b < B; ++b) {
        const auto& list = lists[b * H + h];
        if (list.size() <= rank) continue;
        most = std::max(most, std::min<size_t>(kRowsPerChunk, list.size() - rank));
        const int64_t last = list[std::min(list.size(), rank + kRowsPerChunk) - 1];
        chunk.key_first = std::min(chunk.key_first, first_key(list[rank]));
        chunk.key_end = std::max(chunk.key_end, end_key(last));
      }
      if (most > 0) heads.push_back(h);
      n = std::max(n, most);
    }
    std::vector<int64_t> from, to, places;
    for (int64_t b = 0; b < B; ++b)
      for (int64_t h : heads) {
        const auto& list = lists[b * H + h];
        for (size_t r = rank; r < rank + n; ++r) {
          const bool real = r < list.size();
          from.push_back(real ? list[r] : 0);
          to.push_back(real ? list[r] : T);
          places.push_back(real ? place(list[r]) : chunk.key_first);
        }
      }
    const int64_t h = std::ssize(heads);
    chunk.every = h == H;
    chunk.heads = at::tensor(heads, at::kLong).view({1, h, 1});
    chunk.from = at::tensor(from, at::kLong).view({B, h, -1});
    chunk.to = at::tensor(to, at::kLong).view({B, h, -1});
    chunk.places = at::tensor(places, at::kLong);
    if (std::find(to.begin(), to.end(), T) != to.end()) chunk.real = (chunk.to < T).unsqueeze(3);
    return chunk;
  }

  // What is added to the scores of a chunk: [B,h,n,m] or broadcast to it, undefined: nothing.
  std::optional<Tensor> bias(const Chunk& chunk, at::ScalarType type) const {
    const int64_t keys = chunk.key_end - chunk.key_first;
    Tensor bias;
    if (causal || window > 0) {
      // By distance j - place; the row of a place is a window of `keys` of them.
      const auto distance = at::arange(chunk.key_first - (S - 1), chunk.key_end);
      auto seen = causal ? distance <= 0 : distance.abs() < window;
      if (causal && window > 0) seen = seen & (distance > -window);
      const auto line =
          at::zeros(distance.sizes(), type).masked_fill(seen.logical_not(), -kInfinity);
      bias = line.unfold(0, keys, 1).index_select(0, S - 1 - chunk.places);
      bias = bias.view({chunk.from.size(0), chunk.from.size(1), -1, keys});
    }
    if (key_length.defined()) {
      // Rows that fill up see a key also where the example has none.
      const auto length = key_length.clamp_min(chunk.key_first + 1).view({-1, 1, 1, 1});
      const auto hidden = at::arange(chunk.key_first, chunk.key_end) >= length;  // [B,1,1,m]
      bias = bias.defined() ? bias.masked_fill(hidden, -kInfinity)
                            : at::zeros(hidden.sizes(), type).masked_fill(hidden, -kInfinity);
    }
    return bias.defined() ? std::optional(bias) : std::nullopt;
  }
};

// Rows t [B,h,n] of x [B,H,T,d] -> [B,h,n,d].
Tensor pick(const Tensor& x, const Chunk& chunk) {
  const auto b = at::arange(x.size(0)).view({-1, 1, 1});
  return x.index({b, chunk.heads, chunk.from});
}

// The other way, into [B,H,T+1,d].
void put(Tensor& x, const Chunk& chunk, const Tensor& rows) {
  const auto b = at::arange(x.size(0)).view({-1, 1, 1});
  x.index_put_({b, chunk.heads, chunk.to}, rows);
}

// Zeros [B,H,T+1,d], laid out as torch's fused attention lays out its output.
Tensor zero_rows(const Tensor& like) {
  return like.new_zeros({like.size(0), like.size(2) + 1, like.size(1), like.size(3)})
      .transpose(1, 2);
}

Tensor keys_of(const Tensor& k, const Chunk& chunk) {  // [B,H,S,d] -> [B,h,m,d]
  const auto heads = chunk.every ? k : k.index_select(1, chunk.heads.flatten());
  return heads.narrow(2, chunk.key_first, chunk.key_end - chunk.key_first);
}

void add_to_keys(Tensor& k, const Chunk& chunk, const Tensor& rows) {
  auto keys = k.narrow(2, chunk.key_first, chunk.key_end - chunk.key_first);
  if (chunk.every)
    keys.add_(rows);
  else
    keys.index_add_(1, chunk.heads.flatten(), rows);
}

// torch's fused attention on the CPU, chunk by chunk. An autograd function of its own, because the
// graph of the chunks would keep their masks and sum gradients of whole tensors.
class AttendRows : public torch::autograd::Function<AttendRows> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& q, const Tensor& k,
                        const Tensor& v, const c10::intrusive_ptr<RowPlan>& plan) {
    auto out = zero_rows(q);
    torch::autograd::variable_list saved{q, k, v};
    for (const auto& chunk : plan->chunks) {
      const auto [rows, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
          pick(q, chunk), keys_of(k, chunk), keys_of(v, chunk), 0, false,
          plan->bias(chunk, q.scalar_type()), plan->scale);
      put(out, chunk, rows);
      saved.insert(saved.end(), {rows, lse});
    }
    ctx->save_for_backward(saved);
    ctx->saved_data["plan"] = at::IValue::make_capsule(plan);
    return out.narrow(2, 0, q.size(2));  // [B,H,T,d]
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto &q = saved[0], &k = saved[1], &v = saved[2];
    const auto held = ctx->saved_data["plan"].toCapsule();
    const auto& plan = static_cast<const RowPlan&>(*held);
    auto for_q = zero_rows(q), for_k = at::zeros_like(k), for_v = at::zeros_like(v);
    for (size_t n = 0; n < plan.chunks.size(); ++n) {
      const auto& chunk = plan.chunks[n];
      auto g = pick(gradients[0], chunk);
      if (chunk.real.defined()) g = g * chunk.real;
      const auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          g, pick(q, chunk), keys_of(k, chunk), keys_of(v, chunk), saved[3 + 2 * n],
          saved[4 + 2 * n], 0, false, plan.bias(chunk, q.scalar_type()), plan.scale);
      put(for_q, chunk, gq);
      add_to_keys(for_k, chunk, gk);
      add_to_keys(for_v, chunk, gv);
    }
    return {for_q.narrow(2, 0, q.size(2)), for_k, for_v, {}};
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
      std::get<1>(at::sort(chosen.logical_not(), /*stable=*/true, -1)).narrow(2, 0, n);  // [B,H,n]
  auto rows = ctx;
  rows.mask = {};
  rows.mask.allowed = rows_of(allowed_keys(ctx.mask, T, S, q.device()), list, T, S);
  rows.bias = rows_of(ctx.bias, list, T, S);
  if (ctx.position_bias) {
    // Row t of the bias is a window of S distances, from that of its first key on.
    auto table = ctx.position_bias->by_distance(1 - S, T - 1);
    if (ctx.head_ids.defined()) table = table.index_select(0, ctx.head_ids);
    const auto bias = rows_of(table.unfold(1, S, 1).flip(1), list, T, S);  // [B,H,n,S]
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
  const auto some =
      fused_serves(q, ctx)
          ? AttendRows::apply(last_q, last_k, last_v,
                              c10::make_intrusive<RowPlan>(rows, k.size(2), ctx, scale))
          : attend_gathered(last_q, last_k, last_v, rows, own, scale);
  if (first == 0) return some;
  const auto all = attend(q.narrow(1, 0, first), keys.narrow(1, 0, first),
                          values.narrow(1, 0, first), context_of_heads(ctx, 0, first, H), scale);
  // Joined in the layout in which the output projection reads them.
  return at::cat({all.transpose(1, 2), some.transpose(1, 2)}, 2).transpose(1, 2);  // [B,H,T,d]
}

bool rows_pay(const Tensor& q, const HeadContext& ctx, double share) {
  constexpr int64_t kFewestRows = 256;
  constexpr double kLargestShare = 0.75;
  return fused_serves(q, ctx) && q.size(2) >= kFewestRows && share <= kLargestShare;
}

}  // namespace headlab
