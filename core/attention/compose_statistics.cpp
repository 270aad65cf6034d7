#include "core/attention/compose_statistics.h"

#include <array>

#include "core/torch.h"

namespace headlab {
namespace {

constexpr int kTerms = 5, kQueryGate = 5, kKeyGate = 6;
using Table = std::array<Statistic, 7>;

// Terms in the order of Composition::terms(), then gates.
const Table& table(ComposedSide side) {
  static const char* const units = "1";
  static const auto term = [](const char* name, const char* what) {
    return Statistic{name, units, what,  "norm of the term / norm of what is composed, over pairs",
                     true, false, false, true};
  };
  static const auto gate = [](const char* name, const char* what) {
    return Statistic{name, units, what, "mean over tokens of |g|", true, false, false};
  };
  static const Table pre{term("pre_static_term", "what the fixed mixing adds to the scores"),
                         term("pre_query_term", "what the query's mixing adds to the scores"),
                         term("pre_query_gate_term", "what the query's gates add to the scores"),
                         term("pre_key_term", "what the key's mixing adds to the scores"),
                         term("pre_key_gate_term", "what the key's gates add to the scores"),
                         gate("pre_query_gate", "how far the query's gates on the scores open"),
                         gate("pre_key_gate", "how far the key's gates on the scores open")};
  static const Table post{term("post_static_term", "what the fixed mixing adds to the weights"),
                          term("post_query_term", "what the query's mixing adds to the weights"),
                          term("post_query_gate_term", "what the query's gates add to the weights"),
                          term("post_key_term", "what the key's mixing adds to the weights"),
                          term("post_key_gate_term", "what the key's gates add to the weights"),
                          gate("post_query_gate", "how far the query's gates on the weights open"),
                          gate("post_key_gate", "how far the key's gates on the weights open")};
  return side == ComposedSide::kPre ? pre : post;
}

double norm(const Tensor& x, const Tensor& counted) {
  return at::where(counted, x.to(at::kDouble), 0.0).norm().item<double>();
}

void report_gates(HeadProbe& probe, const Statistic& statistic, const Tensor& factors) {
  if (!factors.defined()) return;
  const auto g = factors.select(1, -1).to(at::kDouble).abs();  // [B,N,H]
  probe.report(statistic.name, g.sum(at::IntArrayRef({0, 1})),
               at::full({g.size(2)}, g.size(0) * g.size(1), at::kDouble));
}

}  // namespace

std::vector<Statistic> composition_statistics(ComposedSide side, bool fixed, bool query, bool key) {
  const std::array<bool, 7> exists{fixed, query, query, key, key, query, key};
  std::vector<Statistic> statistics;
  for (size_t n = 0; n < exists.size(); ++n)
    if (exists[n]) statistics.push_back(table(side)[n]);
  return statistics;
}

void report_composition(HeadProbe& probe, ComposedSide side, const Composition& composition,
                        const Tensor& input, const Tensor& counted) {
  if (!probe.statistics || composition.is_identity()) return;
  const auto& statistics = table(side);
  const double whole = norm(input, counted);
  const auto terms = composition.terms(input);
  const auto scalar = [](double value) { return at::scalar_tensor(value, at::kDouble); };
  for (int n = 0; n < kTerms; ++n)
    if (terms[n].defined() && whole > 0)
      probe.report(statistics[n].name, scalar(norm(terms[n], counted) / whole), scalar(1));
  report_gates(probe, statistics[kQueryGate], composition.query());
  report_gates(probe, statistics[kKeyGate], composition.key());
}

const std::vector<Statistic>& composed_map_statistics() {
  static const std::vector<Statistic> table{
      {"composed_mass", "1", "size of the composed weights of a row",
       "mean over rows of sum_j |a'|, a' the weights that meet the values", true, false, false},
      {"composed_negative_share", "1", "negative share of the composed weights",
       "mean over rows of sum_j max(-a', 0) / sum_j |a'|", true, false, false},
      {"composed_cosine", "1", "how alike the composed weights of two heads are",
       "mean over pairs of heads of the cosine of a', over all rows and keys", true, false, false,
       true},
      {"composed_effective_rank", "1", "number of heads that the composed weights are worth",
       "exp(-sum l ln l), l the eigenvalues of C / H, C the cosines of a'", true, false, false,
       true}};
  return table;
}

void report_composed_map(HeadProbe& probe, const Tensor& composed, const Tensor& counted) {
  if (!probe.statistics || composed.numel() == 0) return;
  const auto a = at::where(counted, composed.to(at::kDouble), 0.0);  // [B,H,T,S]
  const auto total = [](const Tensor& of_row) { return of_row.sum(at::IntArrayRef({0, 2})); };
  const auto mass = a.abs().sum(-1), negative = a.clamp_max(0).sum(-1).neg();  // [B,H,T]
  probe.report("composed_mass", total(mass), total(counted.any(-1)));
  probe.report("composed_negative_share", total((negative / mass).nan_to_num(0)), total(mass > 0));
  auto heads = a.transpose(0, 1).flatten(1);                        // [H,BTS]
  heads = heads.index_select(0, total(mass).nonzero().squeeze(1));  // those that have weights
  const int64_t H = heads.size(0);
  if (H == 0) return;
  heads = heads / heads.norm(2, -1, /*keepdim=*/true);
  const auto cosine = heads.mm(heads.t());                                  // [H,H]
  const auto eigenvalues = (at::linalg_eigvalsh(cosine) / H).clamp_min(0);  // [H]
  const auto one = at::ones({}, at::kDouble);
  if (H > 1) probe.report("composed_cosine", (cosine.sum() - H) / (H * (H - 1)), one);
  probe.report("composed_effective_rank", at::xlogy(eigenvalues, eigenvalues).sum().neg().exp(),
               one);
}

}  // namespace headlab
