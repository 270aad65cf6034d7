#include "variants/families/delta_rule.h"

#include <ATen/ops/linalg_solve_triangular.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numbers>

#include "core/attention/attend.h"
#include "core/attention/call/observer.h"
#include "core/attention/composed/composition.h"
#include "core/attention/paths/paths.h"
#include "core/attention/precision.h"
#include "core/torch.h"

namespace headlab {
namespace {

// Powers of two, for products of features that decay apart are made by halves.
constexpr int64_t kChunk = 64;
int64_t chunk_for(int64_t T) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(T)));
}

Tensor transposed(const Tensor& t) { return t.transpose(-2, -1); }

// Sums of log decays along a dimension, in float64: their differences are small where they are not.
Tensor sums_of(const Tensor& log_decay, int64_t dim) { return log_decay.cumsum(dim, at::kDouble); }
// e^difference in the type of k.
Tensor decay_over(const Tensor& difference, const Tensor& k) {
  return difference.to(k.scalar_type()).exp();
}

// sum_f rows_if k_jf e^(c_if - c_jf) for j <= i: rows [..,R,n,d], k [..,n,d], c [..,n,d] the sums
// of log decays -> [..,R,n,n], 0 above the diagonal. Blocks begin with one token and double: rows
// of the later half meet keys of the earlier half. Both decay relative to the first token of the
// later half, so that each factor is at most 1: none overflows, and one that underflows belongs to
// a product that does.
Tensor products_by_halves(const Tensor& rows, const Tensor& k, const Tensor& c) {
  const int64_t n = k.size(-2);
  auto blocks = (rows * k.unsqueeze(-3)).sum(-1).unsqueeze(-1).unsqueeze(-1);  // [..,R,n,1,1]
  for (int64_t s = 1; s < n; s *= 2) {
    const auto half = [&](const Tensor& t, int64_t which) {
      return t.unflatten(-2, {n / (2 * s), 2, s}).select(-3, which);  // [..,n/2s,s,d]
    };
    const auto later = half(c, 1), between = later.narrow(-2, 0, 1);
    const auto of_rows = half(rows, 1) * decay_over(later - between, k).unsqueeze(-4);
    const auto of_keys = half(k, 0) * decay_over(between - half(c, 0), k);    // [..,n/2s,s,d]
    const auto met = at::matmul(of_rows, transposed(of_keys).unsqueeze(-4));  // [..,R,n/2s,s,s]
    const auto two = blocks.unflatten(-3, {n / (2 * s), 2});
    blocks = at::cat({at::cat({two.select(-3, 0), at::zeros_like(met)}, -1),
                      at::cat({met, two.select(-3, 1)}, -1)},
                     -2);  // [..,R,n/2s,2s,2s]
  }
  return blocks.squeeze(-3);
}

// Q K^T * G and K K^T * G, 0 above the diagonal: [..,2,n,n].
Tensor decayed_products(const Tensor& q, const Tensor& k, const Tensor& c) {
  const auto rows = at::stack({q, k}, -3);  // [..,2,n,d]
  if (c.size(-1) > 1) return products_by_halves(rows, k, c);
  const int64_t n = k.size(-2);
  const auto later = at::ones({n, n}, k.options().dtype(at::kBool)).triu(1);
  const auto gap = (c - transposed(c)).masked_fill(later, -std::numeric_limits<double>::infinity());
  const auto met = at::matmul(rows.flatten(-3, -2), transposed(k));  // [..,2n,n]
  return met.unflatten(-2, {2, n}) * decay_over(gap, k).unsqueeze(-3);
}

// [B,H,T,.] -> chunks [B,H,N,C,.]; tokens of zeros, which leave a state as it is, fill the last.
Tensor in_chunks(const Tensor& t, int64_t C) {
  const int64_t T = t.size(2), N = (T + C - 1) / C;
  const auto full = N * C > T ? at::constant_pad_nd(t, {0, 0, 0, N * C - T}) : t;
  return full.unflatten(2, {N, C});
}

}  // namespace

Tensor delta_rule(const DeltaTokens& in, Tensor& state) {
  const int64_t T = in.q.size(2), d = in.k.size(3), e = in.v.size(3);
  if (!state.defined()) state = in.v.new_zeros({in.q.size(0), in.q.size(1), d, e});
  if (T == 1) {  // decoding, by the recurrence itself
    state = transposed(in.log_decay.exp()) * state;
    const auto written = (in.v - at::matmul(in.k, state)) * in.beta;  // [B,H,1,e]
    state = state + transposed(in.k) * written;
    return at::matmul(in.q, state);
  }
  const int64_t C = std::min(kChunk, chunk_for(T));
  const auto chunks = [C](const Tensor& t) { return in_chunks(t, C); };
  const auto q = chunks(in.q), k = chunks(in.k), beta = chunks(in.beta);
  const auto c = sums_of(chunks(in.log_decay), 3);  // [B,H,N,C,1 or d]
  const auto decay = decay_over(c, k), last = c.narrow(3, C - 1, 1);
  const auto products = decayed_products(q, k, c);  // [B,H,N,2,C,C]

  // What each token adds to the state is its v minus a product with the state before the chunk,
  // both corrected for what the tokens before it in the chunk add.
  const auto writes = at::linalg_solve_triangular(
      products.select(3, 1) * beta, at::cat({chunks(in.v), k * decay}, 4) * beta,
      /*upper=*/false, /*left=*/true, /*unitriangular=*/true);  // [B,H,N,C,e+d]

  // Slices of one unbind(): the gradient of each slice alone would be as large as the whole.
  const auto of_values = writes.narrow(4, 0, e).unbind(2),
             of_state = writes.narrow(4, e, d).unbind(2),
             kept = transposed(decay_over(last, k)).unbind(2),
             keys = transposed(k * decay_over(last - c, k)).unbind(2);
  std::vector<Tensor> states, written;
  for (size_t n = 0; n < keys.size(); ++n) {
    states.push_back(state);
    written.push_back(of_values[n] - at::matmul(of_state[n], state));  // [B,H,C,e]
    state = kept[n] * state + at::matmul(keys[n], written[n]);         // [B,H,d,e]
  }
  const auto o = at::matmul(q * decay, at::stack(states, 2)) +
                 at::matmul(products.select(3, 0), at::stack(written, 2));
  return o.flatten(2, 3).narrow(2, 0, T);
}

Tensor delta_map(const DeltaTokens& in) {
  const int64_t T = in.q.size(2);
  const auto whole = [n = chunk_for(T)](const Tensor& t) { return in_chunks(t, n).squeeze(2); };
  const auto beta = whole(in.beta);  // [B,H,n,1]
  const auto products = decayed_products(whole(in.q), whole(in.k), sums_of(whole(in.log_decay), 2));
  const auto map =
      at::linalg_solve_triangular(products.select(2, 1) * beta, products.select(2, 0),
                                  /*upper=*/false, /*left=*/false, /*unitriangular=*/true);
  return (map * transposed(beta)).narrow(2, 0, T).narrow(3, 0, T);
}

namespace {

// The map in the order of x; heads of call.uniform weigh the visible tokens alike.
Tensor map_of(const DeltaTokens& in, const VisibleTokens& tokens, const HeadCall& call) {
  auto a = delta_map(in);  // [B,H,T,T]
  if (call.uniform.defined()) {
    const int64_t T = a.size(2);
    const auto up_to = at::arange(1, T + 1, a.options()).unsqueeze(1);  // [T,1] how many tokens
    const auto alike = at::ones({T, T}, a.options()).tril() / up_to;
    a = at::where(call.uniform.view({-1, 1, 1}), alike, a);
  }
  return transposed(tokens.put_back(transposed(tokens.put_back(a))));
}

// The outputs of uniform heads without a map: the mean of the values up to each token [B,H,T,e].
Tensor running_means(const Tensor& v, const VisibleTokens& tokens, LayerCache* cache) {
  const int64_t T = v.size(2), e = v.size(3);
  auto sums = tokens.hide(at::cat({v, at::ones_like(v.narrow(3, 0, 1))}, 3)).cumsum(2);
  if (cache) {
    auto& past = cache->state("sums");
    if (past.defined()) sums = sums + past;
    past = sums.narrow(2, T - 1, 1).clone();
  }
  return sums.narrow(3, 0, e) / sums.narrow(3, e, 1).clamp_min(1);
}

void report_state(const DeltaTokens& in, const Tensor& state, const VisibleTokens& tokens,
                  const HeadCall& call) {
  const auto sizes = in.q.sizes().slice(0, 3);
  auto counted = tokens.counted(call);  // [B,T]
  counted = counted.defined() ? counted.unsqueeze(1).expand(sizes)
                              : at::ones(sizes, in.q.options().dtype(at::kBool));
  const auto report = [&](const char* name, const Tensor& of_token) {
    report_rows(*call.observer, name, tokens.put_back(of_token).squeeze(3), counted);
  };
  report("decay_mean", in.log_decay.exp().mean(3, /*keepdim=*/true));
  report("half_life", in.log_decay.neg().mean(3, /*keepdim=*/true));
  report("beta_mean", in.beta);
  const auto norms = state.to(at::kDouble).flatten(2).norm(2, -1);  // [B,H]
  const auto examples = counted.any(2);
  call.observer->report("state_norm", at::where(examples, norms, 0).sum(0), examples.sum(0));
}

// half_life is reported as the mean of -g.
void finish_half_life(int64_t, LayerValues& values) {
  const auto found = values.find("half_life");
  if (found == values.end()) return;
  for (auto& value : found->second) value = std::numbers::ln2 / value;
}

}  // namespace

Tensor attend_by_delta_rule(const DeltaTokens& in, const VisibleTokens& tokens,
                            const HeadCall& call) {
  require_maps(call.backend, "heads that keep a state");
  TORCH_CHECK(
      !call.cache || call.dropout == 0,
      "heads that keep a state have no weights to drop behind a cache: decode in eval mode");
  const WithoutAutocast exact;
  const bool by_map = !call.cache && (call.backend == Backend::kEager || call.dropout > 0);
  const bool shows_map = call.observer && call.observer->wants_maps() && past_places(call) == 0;
  const bool reports = call.observer && call.observer->wants_statistics();
  LayerCache none;
  auto& state = (call.cache ? call.cache : &none)->state("state");  // [B,H,d,e]
  Tensor v, a, o;
  if (by_map || shows_map) v = tokens.put_back(in.v);
  if (by_map) {
    a = map_of(in, tokens, call);
    o = weighted_values(a, v, call);
  } else {
    o = delta_rule(in, state);
    if (call.uniform.defined())
      o = at::where(call.uniform.view({-1, 1, 1}), running_means(in.v, tokens, call.cache), o);
    o = tokens.put_back(o);
  }
  const at::NoGradGuard no_grad;
  if (shows_map) {
    if (!by_map) a = map_of(in, tokens, call);
    call.observer->weights(
        {.p = a.abs(), .a = a, .softmax = false, .rows_sum_to_one = false, .v = v, .out = o}, call);
  }
  if (by_map && reports) delta_rule(in, state);
  if (reports) report_state(in, state, tokens, call);
  return o;
}

std::vector<Statistic> delta_statistics() {
  auto all = composed_statistics();
  auto half_life =
      head_statistic("half_life", "token", "tokens after which half of the state has decayed",
                     "ln 2 / mean over tokens (and features) of -g_{t,h}");
  half_life.finish = finish_half_life;
  all.push_back(head_statistic("decay_mean", "1", "decay of the state in one token",
                               "mean over tokens (and features) of e^g_{t,h}"));
  all.push_back(half_life);
  all.push_back(head_statistic("beta_mean", "1", "strength of the correction of the state",
                               "mean over tokens of b_{t,h}"));
  all.push_back(head_statistic("state_norm", "1", "norm of the state behind the last token",
                               "mean over examples of |S_{T,h}|_F"));
  return all;
}

}  // namespace headlab
