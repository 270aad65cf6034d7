#include "experiments/analysis/maps/map_divergence.h"

#include <algorithm>
#include <vector>

#include "core/attention/call/attention_call.h"
#include "core/observe/row_stream.h"
#include "core/torch.h"

namespace headlab {
namespace {

// The kernel of the streamed divergence recomputes rows from scores: here the scores are ln p.
void add_rows(const Tensor& p, const Tensor& counted, double* sums, double* counts) {
  const int64_t N = p.size(0), R = p.size(1), S = p.size(2);
  const auto none = p.new_zeros({1, 1, 1, 1});
  AttentionCall call;
  call.q = none.expand({1, N, R, 1});
  call.k = call.v = none.expand({1, 1, S, 1});
  call.places = false;
  call.bias = p.log().unsqueeze(0);                               // [1,N,R,S]
  call.allowed = ((p > 0) & counted.unsqueeze(-1)).unsqueeze(0);  // hides ln 0
  const auto held = hold_rows<double>(call, {.out = call.q}, at::kCPU);
  const auto kernels = row_stats_kernels<double>();
  std::vector<double> scratch(kernels.js_scratch(held.problem));
  for (int64_t first = 0; first < R; first += kJsRowsPerSlot)
    kernels.js(held.problem, 0, first, 1, sums, counts, scratch.data());
}

}  // namespace

void add_divergence(const Tensor& p, const Tensor& counted, double* sums, double* counts) {
  TORCH_CHECK(p.dim() == 3 && counted.sizes() == p.sizes().slice(0, 2), "divergence: rows ",
              p.sizes(), ", counted ", counted.sizes());
  TORCH_CHECK(p.size(0) <= kMostDivergingHeads, "divergence: at most ", kMostDivergingHeads,
              " heads, are ", p.size(0));
  if (p.numel() == 0) return;
  constexpr int64_t kRows = 64;  // at a time: ln p of all of them would be a map more
  for (int64_t first = 0; first < p.size(1); first += kRows) {
    const int64_t rows = std::min(kRows, p.size(1) - first);
    add_rows(p.narrow(1, first, rows), counted.narrow(1, first, rows), sums, counts);
  }
}

Tensor smooth_rows(const Tensor& p) { return p * 0.999 + 0.001 / static_cast<double>(p.size(-1)); }

}  // namespace headlab
