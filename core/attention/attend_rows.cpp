#include "core/attention/attend_rows.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>

#include "core/attention/cache.h"
#include "core/attention/masks.h"
#include "core/attention/precision.h"
#include "core/kernels/attention_rows.h"
#include "core/torch.h"

namespace headlab {
namespace {

constexpr int64_t kRowsPerChunk = 96;  // of causal or windowed rows, which differ in their keys

// Neighbours among the chosen rows, of one example and head, and the keys that some of them may
// see.
struct Chunk {
  int64_t b, h;
  int64_t first, end;  // rows
  int64_t key_first, key_end;
};

// Which rows attend to which keys. Held by the autograd graph.
struct RowPlan : torch::CustomClassHolder {
  KeyReach reach;
  int64_t T, S;
  double scale;
  Tensor query;               // [N] of the chosen rows
  std::vector<Chunk> chunks;  // by head and example
  std::vector<size_t> heads;  // where in `chunks` those of each (h, b) start, and their end
  // What is added to a score at distance j - place = -(S-1) .. S-1: 0, or -infinity where hidden;
  // undefined: every key of a chunk is seen.
  Tensor line;

  RowPlan(const ChosenRows& rows, int64_t keys, const HeadCall& call, double factor,
          at::ScalarType type)
      : reach(key_reach(call.mask.causal, call.mask.window)),
        T(rows.T),
        S(keys),
        scale(factor),
        query(rows.query) {
    Tensor key_length;
    if (call.mask.key_length.defined()) key_length = call.mask.key_length.to(at::kCPU, at::kLong);
    for (int64_t h = 0; h < rows.H; ++h)
      for (int64_t b = 0; b < rows.B; ++b) {
        const int64_t n = h * rows.B + b;
        heads.push_back(chunks.size());
        cut({b, h, rows.starts[n], rows.starts[n + 1], 0, 0},
            key_length.defined() ? key_length[b].item<int64_t>() : S);
      }
    heads.push_back(chunks.size());
    const auto seen = within_reach(at::arange(-(S - 1), S), reach);
    if (!seen.defined()) return;
    line = at::zeros(seen.sizes(), type).masked_fill(seen.logical_not(), kHiddenScore);
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
      if (differ && chunk.end - chunk.first == kRowsPerChunk) close(n + 1);
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
                        const Tensor& given_k, const Tensor& given_v,
                        const c10::intrusive_ptr<RowPlan>& plan) {
    // Other threads know nothing of this one's being without gradients.
    const auto q = given_q.detach(), k = given_k.detach(), v = given_v.detach();
    const auto out = at::zeros_like(q);  // [N,d]
    const auto precise = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const auto lse = at::zeros({q.size(0), 1}, q.options().dtype(precise));  // [N,1]
    at::parallel_for(0, std::ssize(plan->chunks), 1, [&](int64_t begin, int64_t end) {
      at::AutoDispatchBelowADInplaceOrView no_autograd;  // nor the caller's inference mode
      for (int64_t n = begin; n < end; ++n) {
        const auto& chunk = plan->chunks[n];
        const auto [rows, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
            pick(q, chunk), keys_of(k, chunk), keys_of(v, chunk), 0, false, plan->bias(chunk),
            plan->scale);
        pick(out, chunk).copy_(rows);
        pick(lse, chunk).squeeze(3).copy_(sums);
      }
    });
    ctx->save_for_backward({given_q, given_k, given_v, out, lse});
    ctx->saved_data["plan"] = at::IValue::make_capsule(plan);
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "rows that heads choose have no second derivatives");
    auto saved = ctx->get_saved_variables();
    for (auto& t : saved) t = t.detach();
    const auto &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &lse = saved[4];
    const auto held = ctx->saved_data["plan"].toCapsule();
    const auto& plan = static_cast<const RowPlan&>(*held);
    const auto g = gradients[0].detach();
    const auto for_q = at::zeros_like(q), for_k = at::zeros_like(k), for_v = at::zeros_like(v);
    // A head's chunks meet in its keys: one after the other.
    at::parallel_for(0, std::ssize(plan.heads) - 1, 1, [&](int64_t begin, int64_t end) {
      at::AutoDispatchBelowADInplaceOrView no_autograd;  // nor the caller's inference mode
      for (size_t n = plan.heads[begin]; n < plan.heads[end]; ++n) {
        const auto& chunk = plan.chunks[n];
        const auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
            pick(g, chunk), pick(q, chunk), keys_of(k, chunk), keys_of(v, chunk), pick(out, chunk),
            pick(lse, chunk).squeeze(3), 0, false, plan.bias(chunk), plan.scale);
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

// Any mask and bias, with dropout and on any device: attend() on lists of rows of one length.
Tensor attend_lists(const Tensor& q, const Tensor& k, const Tensor& v, const ChosenRows& rows,
                    const HeadCall& call, double scale) {
  const int64_t B = rows.B, H = rows.H, T = rows.T, S = k.size(2);
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
  Scope scope;
  scope.row_places = query + (call.cache ? call.cache->length() : call.places ? S - T : 0);
  scope.mask.allowed = rows_of(allowed_keys(call.mask, T, S, q.device()), query, T, S);
  scope.bias = rows_of(call.bias, query, T, S);
  if (call.position_bias) {
    // Of row t the window of S distances that starts at T - 1 - t: a view.
    const auto windows = biases_by_distance(call, T, S).unfold(1, S, 1);  // [H,T,S]
    const auto bias = rows_of(windows, T - 1 - query, T, S);              // [B,H,n,S]
    scope.bias = scope.bias.defined() ? scope.bias + bias : bias;
  }
  const auto out = attend(lists(q), k, v, call.within(scope), scale);  // [B,H,n,d]
  return out.transpose(0, 1).flatten(0, 2).index_select(0, real.flatten().nonzero().squeeze(1));
}

// torch's fused attention with a mask that a chunk makes for itself.
bool fused_serves(const Tensor& x, const HeadCall& call) {
  const bool path = call.backend == Backend::kAuto || call.backend == Backend::kFlash;
  return call.map->is_softmax() && x.is_cpu() && call.dropout == 0 && path &&
         !call.bias.defined() && !call.position_bias && !call.mask.allowed.defined();
}

}  // namespace

Tensor attend_rows(const Tensor& q, const Tensor& k, const Tensor& v, const ChosenRows& rows,
                   const HeadCall& call, double scale) {
  if (rows.size() == 0) return q;
  // The kernel gives 0 in rows of scores that are no numbers.
  if (!fused_serves(q, call) || !sums_are_finite(q) || !sums_are_finite(k))
    return attend_lists(q, k, v, rows, call, scale);
  return AttendRows::apply(
      q, k, v, c10::make_intrusive<RowPlan>(rows, k.size(2), call, scale, q.scalar_type()));
}

bool rows_pay(const Tensor& x, const HeadCall& call, double share) {
  constexpr int64_t kFewestRows = 256;
  constexpr double kLargestShare = 0.7;
  return fused_serves(x, call) && x.size(1) >= kFewestRows && share <= kLargestShare;
}

}  // namespace headlab
