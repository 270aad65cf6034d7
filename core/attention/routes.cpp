#include "core/attention/routes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/attention/attend.h"
#include "core/torch.h"

namespace headlab {
namespace {

constexpr double kNearTie = 1e-3;
constexpr const char* kGateSquare = "gate_square";  // pooled for gate_std alone

}  // namespace

Tensor choose_heads(const Tensor& rank, int64_t K) {
  at::NoGradGuard no_grad;
  const auto order = std::get<1>(at::sort(rank, /*stable=*/true, -1, /*descending=*/true));
  return at::zeros(rank.sizes(), rank.options().dtype(at::kBool))
      .scatter(-1, order.narrow(-1, 0, K), true);
}

Tensor load_balance(const Routes& routes) {
  const auto P = routes.probability.flatten(0, 1).mean(0);                   // [E]
  const auto f = routes.selected.to(P.scalar_type()).flatten(0, 1).mean(0);  // [E]
  return (P * f).sum();
}

const std::vector<Statistic>& route_statistics() {
  static const std::vector<Statistic> table{
      head_statistic("density", "1", "share of tokens that the head serves",
                     "share of tokens with gate != 0; 1 for shared heads"),
      head_statistic("gate_mean", "1", "mean gate", "mean over tokens of g"),
      head_statistic("gate_std", "1", "standard deviation of the gate",
                     "sqrt(mean g^2 - (mean g)^2) over tokens"),
      head_statistic("gate_selected", "1", "mean gate where selected",
                     "mean of g over tokens that selected the routed head"),
      head_statistic("probability", "1", "mean router probability P",
                     "mean over tokens of the router's softmax over the routed heads"),
      head_statistic("selected", "1", "share of tokens that select the head f",
                     "share of tokens with the routed head among their K best"),
      layer_statistic("alpha_shared", "1", "weight of the shared heads against the routed ones",
                      "mean over tokens of a_0, before the factor 2"),
      layer_statistic("route_entropy", "nat", "entropy of the router's distribution",
                      "mean over tokens of -sum_i p_i ln p_i over the routed heads"),
      layer_statistic("near_tie", "1", "share of tokens whose choice was close",
                      "share of tokens with p_(K) - p_(K+1) < 1e-3; 0 for K = E"),
      layer_statistic("load_entropy", "1", "entropy of the load relative to perfect balance",
                      "entropy of f / sum f over ln E"),
      layer_statistic("load_max", "1", "load of the busiest head relative to perfect balance",
                      "max_i f_i E / K; 1 = balanced, E/K = collapse"),
      layer_statistic("dead_heads", "1", "routed heads that no token selects", "count of f_i = 0"),
      layer_statistic("balance_paper", "1", "load-balance loss of the paper", "sum_i P_i f_i"),
      layer_statistic("balance_code", "1", "load-balance loss of the released code",
                      "E sum_i P_i f_i"),
  };
  return table;
}

namespace {

// Sums over the tokens that count and hands them to the probe.
class Reporter {
 public:
  Reporter(HeadProbe& probe, const Routes& routes, const Tensor& query_length)
      : probe_(probe), heads_(routes.gates.size(2)), routed_(routes.routed) {
    const int64_t B = routes.gates.size(0), T = routes.gates.size(1);
    const auto device = routes.gates.device();
    counted_ = within_length(query_length, T, device);  // [B,T]
    if (!counted_.defined())
      counted_ = at::ones({B, T}, at::TensorOptions(at::kBool).device(device));
    tokens_ = counted_.sum();
  }

  void by_head(const char* name, const Tensor& of_token) {  // [B,T,H]
    const auto sums = sum(of_token);                        // [H]
    probe_.report(name, sums, tokens_.expand_as(sums));
  }
  void by_routed_head(const char* name, const Tensor& of_token) {  // [B,T,E]
    const auto sums = sum(of_token);                               // [E]
    probe_.report(name, at_routed(sums), at_routed(tokens_.expand_as(sums)));
  }
  void where_selected(const char* name, const Tensor& of_token, const Tensor& selected) {
    probe_.report(name, at_routed(sum(of_token * selected)), at_routed(sum(selected)));
  }
  void by_layer(const char* name, const Tensor& of_token) {  // [B,T]
    probe_.report(name, sum(of_token.unsqueeze(2)).squeeze(0), tokens_);
  }

 private:
  Tensor sum(const Tensor& of_token) const {  // [B,T,n] -> [n]
    const auto kept = of_token.to(at::kDouble).masked_fill(counted_.logical_not().unsqueeze(2), 0);
    return kept.sum(at::IntArrayRef({0, 1}));
  }
  Tensor at_routed(const Tensor& of_routed) const {  // [E] -> [H], 0 at shared heads
    const auto values = of_routed.to(at::kDouble);
    return values.new_zeros({heads_}).index_copy(0, routed_, values);
  }

  HeadProbe& probe_;
  int64_t heads_;
  Tensor routed_, counted_, tokens_;  // [E], bool [B,T], scalar
};

// p_(K) - p_(K+1) of each token [B,T]; infinite for K = E.
Tensor margin(const Tensor& probability, const Tensor& selected) {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto p = probability.to(at::kDouble);
  return p.masked_fill(selected.logical_not(), infinity).amin(-1) -
         p.masked_fill(selected, -infinity).amax(-1);
}

}  // namespace

void report_routes(HeadProbe& probe, const Routes& routes, const Tensor& query_length) {
  if (!probe.statistics) return;
  at::NoGradGuard no_grad;
  Reporter report(probe, routes, query_length);
  const auto gates = routes.gates.to(at::kDouble);
  report.by_head("density", gates != 0);
  report.by_head("gate_mean", gates);
  report.by_head(kGateSquare, gates.square());
  if (routes.alpha.defined()) report.by_layer("alpha_shared", routes.alpha);
  if (!routes.selected.defined()) return;
  const auto p = routes.probability.to(at::kDouble);
  const auto chosen = routes.selected.to(at::kBool);
  report.where_selected("gate_selected", gates.index_select(2, routes.routed), chosen);
  report.by_routed_head("probability", p);
  report.by_routed_head("selected", chosen);
  report.by_layer("route_entropy", -at::xlogy(p, p).sum(-1));
  report.by_layer("near_tie", margin(p, chosen) < kNearTie);
}

void finish_routes(int64_t heads, std::map<std::string, std::vector<double>>& values) {
  if (!values.contains("density")) return;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto squares = values.extract(kGateSquare).mapped();
  for (const auto& s : route_statistics()) values.try_emplace(s.name, s.by_layer ? 1 : heads, nan);
  for (int64_t h = 0; h < heads; ++h) {
    const double mean = values["gate_mean"][h];
    values["gate_std"][h] = std::sqrt(std::max(0.0, squares[h] - mean * mean));
    if (std::isnan(mean)) values["gate_std"][h] = nan;
  }
  std::vector<double> f, P;  // of the routed heads that are there
  for (int64_t h = 0; h < heads; ++h) {
    if (std::isnan(values["selected"][h])) continue;
    f.push_back(values["selected"][h]);
    P.push_back(values["probability"][h]);
  }
  if (f.empty()) return;
  const double E = static_cast<double>(f.size());
  const double K = std::accumulate(f.begin(), f.end(), 0.0);  // shares of tokens that select K
  double entropy = 0;
  for (double share : f) entropy -= share > 0 ? share / K * std::log(share / K) : 0;
  values["load_entropy"] = {f.size() > 1 ? entropy / std::log(E) : nan};
  values["load_max"] = {*std::max_element(f.begin(), f.end()) * E / K};
  values["dead_heads"] = {static_cast<double>(std::count(f.begin(), f.end(), 0.0))};
  const double balance = std::inner_product(P.begin(), P.end(), f.begin(), 0.0);
  values["balance_paper"] = {balance};
  values["balance_code"] = {balance * E};
}

std::map<std::string, std::vector<double>> route_values(const Routes& routes,
                                                        const Tensor& query_length) {
  const int64_t H = routes.gates.size(2);
  std::vector<int64_t> heads(H);
  std::iota(heads.begin(), heads.end(), 0);
  HeadProbe probe;
  probe.statistics = true;
  probe.enter(0, H, heads, std::vector<bool>(H, true));
  report_routes(probe, routes, query_length);
  auto values = probe.values(0);
  std::map<std::string, std::vector<double>> of_routes;
  for (const auto& s : route_statistics()) of_routes[s.name] = values.at(s.name);
  return of_routes;
}

}  // namespace headlab
