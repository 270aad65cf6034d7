#include "variants/moh/routes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/attention/attend.h"
#include "core/torch.h"

namespace headlab {
namespace {

constexpr double kNearTie = 1e-3;

// By the numbers of HeadObserver::token_classes().
struct ClassStatistics {
  Statistic density, gate;
};
const std::vector<ClassStatistics>& class_statistics() {
  static const auto of_class = [](const char* density, const char* gate, const char* density_name,
                                  const char* gate_name) {
    ClassStatistics s{
        head_statistic(density, "1", density_name, "share of the class's tokens with gate != 0"),
        head_statistic(gate, "1", gate_name, "mean over the class's tokens of g")};
    s.density.needs = s.gate.needs = Needs::kClasses;
    return s;
  };
  static const std::vector<ClassStatistics> table{
      of_class("density_word", "gate_word", "share of words that the head serves",
               "mean gate of words"),
      of_class("density_cls", "gate_cls", "share of classifier tokens that the head serves",
               "mean gate of classifier tokens"),
      of_class("density_sep", "gate_sep", "share of separators that the head serves",
               "mean gate of separators"),
      of_class("density_punctuation", "gate_punctuation",
               "share of full stops and commas that the head serves",
               "mean gate of full stops and commas")};
  return table;
}

// gate_std comes as the mean of g^2; the load of the routed heads follows from their shares.
void finish_routes(int64_t heads, LayerValues& values) {
  if (!values.contains("density")) return;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& s : route_statistics())
    values.try_emplace(s.name, value_count(s.per, heads), nan);
  for (int64_t h = 0; h < heads; ++h) {
    const double mean = values["gate_mean"][h], square = values["gate_std"][h];
    values["gate_std"][h] = std::isnan(mean) ? nan : std::sqrt(std::max(0.0, square - mean * mean));
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

std::vector<Statistic> finished(std::vector<Statistic> table) {
  for (const auto& s : class_statistics()) table.insert(table.end(), {s.density, s.gate});
  for (auto& s : table) s.finish = finish_routes;
  return table;
}

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
  static const std::vector<Statistic> table = finished({
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
  });
  return table;
}

namespace {

// Sums over the tokens that count and hands them to the probe.
class Reporter {
 public:
  Reporter(HeadObserver& observer, const Routes& routes, const Tensor& query_length)
      : observer_(observer), heads_(routes.gates.size(2)), routed_(routes.routed) {
    const int64_t B = routes.gates.size(0), T = routes.gates.size(1);
    const auto device = routes.gates.device();
    counted_ = within_length(query_length, T, device);  // [B,T]
    if (!counted_.defined())
      counted_ = at::ones({B, T}, at::TensorOptions(at::kBool).device(device));
    tokens_ = counted_.sum();
  }

  void by_head(const char* name, const Tensor& of_token) {  // [B,T,H]
    const auto sums = sum(of_token);                        // [H]
    observer_.report(name, sums, tokens_.expand_as(sums));
  }
  void by_routed_head(const char* name, const Tensor& of_token) {  // [B,T,E]
    const auto sums = sum(of_token);                               // [E]
    observer_.report(name, at_routed(sums), at_routed(tokens_.expand_as(sums)));
  }
  void where_selected(const char* name, const Tensor& of_token, const Tensor& selected) {
    observer_.report(name, at_routed(sum(of_token * selected)), at_routed(sum(selected)));
  }
  // All classes by one product: statistic by statistic this was 2 % of a training step.
  void by_class(const Tensor& gates, const Tensor& classes) {  // [B,T,H], [B,T]
    const auto& table = class_statistics();
    const auto ids = at::arange(std::ssize(table), classes.options());
    const auto members =
        ((classes.unsqueeze(2) == ids) & counted_.unsqueeze(2)).to(at::kDouble).flatten(0, 1);
    const auto count = members.sum(0);  // [C]
    const auto sums_of = [&](const Tensor& of_token) {
      return members.t().mm(of_token.to(at::kDouble).flatten(0, 1));  // [C,H]
    };
    const auto served = sums_of(gates != 0), total = sums_of(gates);
    for (int64_t c = 0; c < std::ssize(table); ++c) {
      const auto of_class = count[c].expand({heads_});
      observer_.report(table[c].density.name, served[c], of_class);
      observer_.report(table[c].gate.name, total[c], of_class);
    }
  }
  void by_layer(const char* name, const Tensor& of_token) {  // [B,T]
    observer_.report(name, sum(of_token.unsqueeze(2)).squeeze(0), tokens_);
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

  HeadObserver& observer_;
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

Tensor query_classes(const HeadCall& call, int64_t T) {
  const auto classes = call.places ? call.observer->token_classes() : Tensor();
  if (!classes.defined() || classes.size(1) < T) return {};
  return classes.slice(1, classes.size(1) - T);
}

void report_routes(HeadObserver& observer, const Routes& routes, const Tensor& query_length,
                   const Tensor& classes) {
  if (!observer.wants_statistics()) return;
  at::NoGradGuard no_grad;
  Reporter report(observer, routes, query_length);
  const auto gates = routes.gates.to(at::kDouble);
  report.by_head("density", gates != 0);
  report.by_head("gate_mean", gates);
  report.by_head("gate_std", gates.square());
  if (classes.defined()) report.by_class(gates, classes);
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

void report_recorded_routes(HeadObserver& observer, const std::map<std::string, Tensor>& recorded) {
  const auto find = [&](const char* name) {
    const auto found = recorded.find(name);
    return found == recorded.end() ? Tensor() : found->second;
  };
  report_routes(
      observer,
      {find("gates"), find("probability"), find("selected"), find("alpha"), find("routed")},
      find("query_length"));
}

}  // namespace headlab
