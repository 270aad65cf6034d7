#include "core/attention/paths/chosen_paths.h"

#include <ATen/Parallel.h>

#include <vector>

#include "core/attention/paths/held.h"
#include "core/attention/paths/paths.h"
#include "core/attention/paths/thresholds.h"
#include "core/attention/precision.h"
#include "core/torch.h"

namespace headlab {
namespace {

// Neighbours among the chosen rows, of one example and head, and the keys that some of them may
// see.
struct Chunk {
  int64_t b, h;
  int64_t first, end;  // rows
  int64_t key_first, key_end;
};

// Which rows attend to which keys.
struct RowPlan {
  AttentionCall call;  // without q, k and v
  int64_t T, S;
  Tensor query;               // [N] of the chosen rows
  std::vector<Chunk> chunks;  // by head and example
  std::vector<size_t> heads;  // where in `chunks` those of each (h, b) start, and their end
  // What is added to a score at distance j - place = -(S-1) .. S-1: 0, or -infinity where hidden;
  // undefined: every key of a chunk is seen.
  Tensor line;

  explicit RowPlan(const AttentionCall& of)
      : call(of.without_inputs()), T(of.rows->T), S(of.k.size(2)), query(of.rows->query) {
    const auto& rows = *of.rows;
    const auto length = call.key_length.defined()
                            ? call.key_length.to(at::kCPU, at::kLong).contiguous()
                            : at::full({rows.B}, S, at::kLong);
    for (int64_t h = 0; h < rows.H; ++h)
      for (int64_t b = 0; b < rows.B; ++b) {
        const int64_t n = h * rows.B + b;
        heads.push_back(chunks.size());
        cut({b, h, rows.starts[n], rows.starts[n + 1], 0, 0}, length.const_data_ptr<int64_t>()[b]);
      }
    heads.push_back(chunks.size());
    const auto seen = within_reach(at::arange(-(S - 1), S), call.reach);
    if (!seen.defined()) return;
    line =
        at::zeros(seen.sizes(), of.q.scalar_type()).masked_fill(seen.logical_not(), kHiddenScore);
  }

  int64_t place(int64_t t) const { return S - T + t; }

  // `all` rows of an example and head. Those that see none of the `length` keys are left out: they
  // stay 0.
  void cut(const Chunk& all, int64_t length) {
    auto chunk = all;
    chunk.end = chunk.first;
    auto close = [&](int64_t next) {
      if (chunk.end > chunk.first) chunks.push_back(chunk);
      chunk.first = chunk.end = next;
    };
    const auto& reach = call.reach;
    const bool differ = reach.back < kUnlimited || reach.ahead < kUnlimited;
    for (int64_t n = all.first; n < all.end; ++n) {
      const auto [first, last] = key_span(reach, place(query.const_data_ptr<int64_t>()[n]), length);
      if (last < first) {
        close(n + 1);
        continue;
      }
      if (chunk.end == chunk.first) chunk.key_first = first;
      chunk.key_end = last + 1;  // ascending, as `first` is
      chunk.end = n + 1;
      if (differ && chunk.end - chunk.first == threshold::kChosenRows) close(n + 1);
    }
    close(all.end);
  }

  // Added to a chunk's scores: [1,1,n,m].
  std::optional<Tensor> bias(const Chunk& chunk) const {
    if (!line.defined()) return std::nullopt;
    // The row of a place is a window of the line.
    const auto windows =
        line.slice(0, chunk.key_first).unfold(0, chunk.key_end - chunk.key_first, 1);
    const auto rows = windows.index_select(0, T - 1 - query.slice(0, chunk.first, chunk.end));
    return rows.view({1, 1, rows.size(0), rows.size(1)});
  }
};

// [N,d] -> rows of a chunk [1,1,n,d].
Tensor pick(const Tensor& x, const Chunk& chunk) {
  return x.slice(0, chunk.first, chunk.end).unsqueeze(0).unsqueeze(0);
}

// [B,H,S,d] -> the keys of a chunk [1,1,m,d].
Tensor keys_of(const Tensor& k, const Chunk& chunk) {
  return k.narrow(0, chunk.b, 1).narrow(1, chunk.h, 1).slice(2, chunk.key_first, chunk.key_end);
}

// torch's fused attention on the CPU, chunk by chunk. An autograd function of its own, because the
// graph of the chunks would keep their masks and sum gradients of whole tensors.
class AttendRows : public torch::autograd::Function<AttendRows> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& given_q,
                        const Tensor& given_k, const Tensor& given_v, const RowPlan& plan) {
    // Other threads know nothing of this one's being without gradients.
    const auto q = given_q.detach(), k = given_k.detach(), v = given_v.detach();
    const auto out = at::zeros_like(q);  // [N,d]
    const auto precise = at_least_float(q);
    const auto lse = at::zeros({q.size(0), 1}, q.options().dtype(precise));  // [N,1]
    at::parallel_for(0, std::ssize(plan.chunks), 1, [&](int64_t begin, int64_t end) {
      at::AutoDispatchBelowADInplaceOrView no_autograd;  // nor the caller's inference mode
      for (int64_t n = begin; n < end; ++n) {
        const auto& chunk = plan.chunks[n];
        const auto [rows, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
            pick(q, chunk), keys_of(k, chunk), keys_of(v, chunk), 0, false, plan.bias(chunk),
            plan.call.scale);
        pick(out, chunk).copy_(rows);
        pick(lse, chunk).squeeze(3).copy_(sums);
      }
    });
    ctx->save_for_backward({given_q, given_k, given_v, out, lse});
    hold(ctx, plan);
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "rows that heads choose have no second derivatives");
    auto saved = ctx->get_saved_variables();
    for (auto& t : saved) t = t.detach();
    const auto &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &lse = saved[4];
    const auto& plan = held<RowPlan>(ctx);
    const auto g = gradients[0].detach();
    const auto for_q = at::zeros_like(q), for_k = at::zeros_like(k), for_v = at::zeros_like(v);
    // A head's chunks meet in its keys: one after the other.
    at::parallel_for(0, std::ssize(plan.heads) - 1, 1, [&](int64_t begin, int64_t end) {
      at::AutoDispatchBelowADInplaceOrView no_autograd;  // nor the caller's inference mode
      for (size_t n = plan.heads[begin]; n < plan.heads[end]; ++n) {
        const auto& chunk = plan.chunks[n];
        const auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
            pick(g, chunk), pick(q, chunk), keys_of(k, chunk), keys_of(v, chunk), pick(out, chunk),
            pick(lse, chunk).squeeze(3), 0, false, plan.bias(chunk), plan.call.scale);
        pick(for_q, chunk).copy_(gq);
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

}  // namespace

AttendedRows chosen_lists(const AttentionCall& call) {
  const auto& rows = *call.rows;
  const int64_t B = rows.B, H = rows.H, T = rows.T, S = call.k.size(2);
  const auto starts = at::tensor(rows.starts, rows.query.options());
  const auto first = starts.slice(0, 0, H * B).unsqueeze(1), count = starts.diff().unsqueeze(1);
  const auto place = at::arange(count.max().item<int64_t>(), starts.options());  // [n]
  const auto real = place < count;                                               // [HB,n]
  // Lists are filled up with rows that stand elsewhere.
  const auto row = (first + place).clamp_max(rows.size() - 1).flatten();  // [HBn]
  const auto lists = [&](const Tensor& packed) {                          // [N,.] -> [B,H,n,.]
    return packed.index_select(0, row).view({H, B, place.size(0), -1}).transpose(0, 1);
  };
  const auto query = lists(rows.query.unsqueeze(1)).squeeze(3);  // [B,H,n]
  auto all = call;
  all.rows = nullptr;
  all.q = lists(call.q);
  all.row_places = query + call.first_place;
  all.allowed = rows_of(allowed_keys(call.reach, call.key_length, call.allowed, T, S, row.device()),
                        query, T, S);
  all.reach = {kUnlimited, kUnlimited}, all.causal = false, all.key_length = Tensor();
  all.bias = rows_of(call.bias, query, T, S);
  if (call.distance_bias.defined()) {
    // Of row t the window of S distances that starts at T - 1 - t: a view.
    const auto windows = call.distance_bias.unfold(1, S, 1);  // [H,T,S]
    const auto bias = rows_of(windows, T - 1 - query, T, S);  // [B,H,n,S]
    all.bias = all.bias.defined() ? all.bias + bias : bias;
    all.distance_bias = Tensor();
  }
  const auto out = attended(all).out.transpose(0, 1).flatten(0, 2);  // [HBn,d]
  return {out.index_select(0, real.flatten().nonzero().squeeze(1)), {}};
}

// torch's fused attention with a mask that a chunk makes for itself.
static bool fused_serves(const AttentionCall& call) {
  return call.is_plain() && call.q.is_cpu() && call.dropout == 0 && !call.bias.defined() &&
         !call.distance_bias.defined() && !call.allowed.defined();
}

bool chosen_flash_serves(const AttentionCall& call) {
  // The kernel gives 0 in rows of scores that are no numbers.
  return fused_serves(call) && sums_are_finite(call.q) && sums_are_finite(call.k);
}

AttendedRows chosen_flash(const AttentionCall& call) {
  return {AttendRows::apply(call.q, call.k, call.v, RowPlan(call)), {}};
}

Tensor attend_rows(const Tensor& q, const Tensor& k, const Tensor& v, const ChosenRows& rows,
                   const HeadCall& head_call, double scale) {
  if (rows.size() == 0) return q;
  AttentionCall call(head_call, rows.T, k.size(2), q);
  call.q = q, call.k = k, call.v = v, call.scale = scale;
  call.rows = &rows;
  hide_by_bias(call.bias, call.allowed);
  return attended(call).out;
}

bool rows_pay(const Tensor& x, const HeadCall& head_call, double share) {
  const int64_t T = x.size(1);
  AttentionCall call(head_call, T, T, x);
  call.q = x;
  return fused_serves(call) &&
         (call.backend == Backend::kAuto || call.backend == Backend::kFlash) &&
         T >= threshold::kFewestChosenTokens && share <= threshold::kLargestChosenShare;
}

}  // namespace headlab
