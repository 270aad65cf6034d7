#include "variants/dcmha/composition_statistics.h"

#include <cmath>
#include <deque>
#include <limits>
#include <utility>

#include "core/attention/call/context.h"
#include "core/attention/precision.h"
#include "core/torch.h"

namespace headlab {
namespace {

constexpr int kTerms = 5;
constexpr double kSaturated = 0.95;

// What is reported of one side. Terms are in the order of TokenComposition::terms().
struct SideStatistics {
  Statistic terms[kTerms], matrix, off_diagonal;
  struct Branch {
    Statistic gate, saturated, w1, w2;
  } query, key;
};
const SideStatistics& side_of(ComposedSide side);

// The shares of the pooled matrices; roots of mean squares.
void finish_composition(int64_t heads, LayerValues& values) {
  for (const auto side : {ComposedSide::kPre, ComposedSide::kPost}) {
    const auto& s = side_of(side);
    if (const auto matrix = values.find(s.matrix.name); matrix != values.end()) {
      double whole = 0, diagonal = 0;
      for (int64_t n = 0; n < heads * heads; ++n) {
        const double square = std::pow(matrix->second[n], 2);
        if (std::isnan(square)) continue;  // of heads that are gone
        whole += square;
        if (n % (heads + 1) == 0) diagonal += square;
      }
      values[s.off_diagonal.name] = {std::sqrt((whole - diagonal) / whole)};
    }
    for (const auto* branch : {&s.query, &s.key})
      for (const char* name : {branch->w1.name, branch->w2.name})
        if (const auto found = values.find(name); found != values.end())
          found->second[0] = std::sqrt(found->second[0]);
  }
}

// Text that lives as long as the program.
const char* kept(std::string text) {
  static std::deque<std::string> all;
  return all.emplace_back(std::move(text)).c_str();
}

SideStatistics make_side(const std::string& side, const std::string& what) {
  const auto term = [&](const std::string& name, const std::string& of) {
    return layer_statistic(kept(side + name + "_term"), "1", kept(of + " adds to the " + what),
                           "norm of the term / norm of what is composed, over pairs");
  };
  const auto branch = [&](const std::string& token) {
    const auto name = [&](const char* last) { return kept(side + token + last); };
    const auto text = [&](const std::string& of) {
      return kept(of + " of the " + token + " on the " + what);
    };
    SideStatistics::Branch b{
        head_statistic(name("_gate"), "1", text("how far gates open"), "mean over tokens of |g|"),
        head_statistic(name("_gate_saturated"), "1", text("share of saturated gates"),
                       "share of tokens with |g| > 0.95"),
        layer_statistic(name("_w1_rms"), "1", text("size of the rows that read heads"),
                        "root mean square of w1 over tokens, rows and heads; below 1 its norm's "
                        "epsilon counts"),
        layer_statistic(name("_w2_rms"), "1", text("size of the rows that write heads"),
                        "root mean square of w2 over tokens, rows and heads")};
    b.w1.finish = b.w2.finish = finish_composition;
    return b;
  };
  SideStatistics s{
      {term("static", "what the fixed mixing"), term("query", "what the query's mixing"),
       term("query_gate", "what the query's gates"), term("key", "what the key's mixing"),
       term("key_gate", "what the key's gates")},
      head_statistic(kept(side + "query_matrix"), "1",
                     kept("mean mixing of the " + what + " that does not depend on the key"),
                     "mean over tokens of Q_i = I + static + sum_r w1_i[r]^T w2_i[r] + diag(g_i), "
                     "from head to head2"),
      layer_statistic(kept(side + "query_off_diagonal"), "1",
                      kept("share of the mean mixing of the " + what + " between heads"),
                      "norm of the mean Q_i off its diagonal / norm of the mean Q_i"),
      branch("query"),
      branch("key")};
  s.matrix.per = Per::kPair;
  s.off_diagonal.finish = finish_composition;
  return s;
}

const SideStatistics& side_of(ComposedSide side) {
  static const SideStatistics pre = make_side("pre_", "scores"),
                              post = make_side("post_", "weights");
  return side == ComposedSide::kPre ? pre : post;
}

double norm(const Tensor& x, const Tensor& pairs) {
  return std::sqrt((x * pairs).square_().sum(at::kDouble).item<double>());
}

Tensor total(const Tensor& of_tokens) { return of_tokens.sum(at::IntArrayRef({0, 1})); }

// 1 for the tokens and heads that count, else 0: [B,N,H].
Tensor counted_heads(const Tensor& length, const Tensor& alive, at::IntArrayRef sizes,
                     const at::Device& device) {
  auto counted = at::ones(sizes, at::TensorOptions(at::kDouble).device(device));
  const auto tokens = within_length(length, sizes[1], device);  // [B,N]
  if (tokens.defined()) counted = counted * tokens.unsqueeze(2);
  return alive.defined() ? counted * alive : counted;
}

// factors [B,2R(+1),N,H] of the tokens within `length`.
void report_branch(HeadObserver& observer, const SideStatistics::Branch& branch,
                   const Tensor& factors, const Tensor& length, const Tensor& alive) {
  if (!factors.defined()) return;
  const int64_t R = factors.size(1) / 2;
  const auto f = factors.to(at::kDouble);
  const auto counted = counted_heads(length, alive, {f.size(0), f.size(2), f.size(3)}, f.device());
  const auto count = total(counted);  // [H]
  if (f.size(1) > 2 * R) {
    const auto g = f.select(1, 2 * R).abs();  // [B,N,H]
    observer.report(branch.gate.name, total(g * counted), count);
    observer.report(branch.saturated.name, total((g > kSaturated) * counted), count);
  }
  const auto squares = f.square() * counted.unsqueeze(1);  // [B,2R+1,N,H]
  observer.report(branch.w1.name, squares.narrow(1, 0, R).sum(), count.sum() * R);
  observer.report(branch.w2.name, squares.narrow(1, R, R).sum(), count.sum() * R);
}

// matrix [B,T,H,H], or [1,1,H,H] for all.
void report_matrix(HeadObserver& observer, const SideStatistics& side, const Tensor& matrix,
                   const Tensor& queries) {  // bool [B,T] that count
  const auto count = queries.sum(at::kDouble);
  const auto all = matrix.to(at::kDouble).expand({queries.size(0), queries.size(1), -1, -1});
  const auto sums = total(all * queries.unsqueeze(2).unsqueeze(3));  // [H,H]
  observer.report(side.matrix.name, sums, count.expand_as(sums));
}

// How alike the weights of heads are, by layer: map [B,H,T,S], 0 where it does not count.
void report_likeness(HeadObserver& observer, const char* cosine_name, const char* rank_name,
                     const Tensor& map) {
  const auto heads = map.to(at::kDouble).transpose(0, 1).flatten(1);  // [H,BTS]
  const auto products = heads.mm(heads.t());                          // [H,H]
  const auto norms = products.diagonal().sqrt();                      // [H]
  const auto weighted = norms.nonzero().squeeze(1);                   // heads that have weights
  const int64_t H = weighted.size(0);
  if (H == 0) return;
  const auto cosine =
      (products / norms / norms.unsqueeze(1)).index_select(0, weighted).index_select(1, weighted);
  const auto eigenvalues =
      (of_finite(cosine, [](const Tensor& m) { return at::linalg_eigvalsh(m); }) / H)
          .clamp_min(0);  // [H]
  const auto one = at::ones({}, at::kDouble);
  if (H > 1) observer.report(cosine_name, (cosine.sum() - H) / (H * (H - 1)), one);
  observer.report(rank_name, at::xlogy(eigenvalues, eigenvalues).sum().neg().exp(), one);
}

}  // namespace

std::vector<Statistic> composition_statistics(ComposedSide side, const CompositionParts& parts) {
  const auto& s = side_of(side);
  const auto& [fixed, query, key, gates] = parts;
  const bool exists[kTerms]{fixed, query, query && gates, key, key && gates};
  std::vector<Statistic> statistics;
  for (int n = 0; n < kTerms; ++n)
    if (exists[n]) statistics.push_back(s.terms[n]);
  if (fixed || query) statistics.insert(statistics.end(), {s.matrix, s.off_diagonal});
  const auto add = [&](const SideStatistics::Branch& b) {
    if (parts.gates) statistics.insert(statistics.end(), {b.gate, b.saturated});
    statistics.insert(statistics.end(), {b.w1, b.w2});
  };
  if (query) add(s.query);
  if (key) add(s.key);
  return statistics;
}

CountedPairs::CountedPairs(const Tensor& map, const HeadCall& call) {
  auto all = counted_pairs(map, allowed_keys(call.mask, map.size(2), map.size(3), map.device()),
                           call.mask);
  if (call.alive.defined()) all = all & call.alive.view({-1, 1, 1});
  pairs = all.to(at_least_float(map));
  rows = pairs.sum(-1) > 0;
  queries = rows.any(1);
}

void report_composition(HeadObserver& observer, ComposedSide side, const TokenComposition& tokens,
                        const Composition& composition, const Tensor& input,
                        const CountedPairs& counted, const HeadCall& call) {
  if (!observer.wants_statistics()) return;
  const auto& s = side_of(side);
  const double whole = norm(input, counted.pairs);
  const auto terms = tokens.terms(input);
  const auto scalar = [](double value) { return at::scalar_tensor(value, at::kDouble); };
  for (int n = 0; n < kTerms; ++n)
    if (terms[n].defined() && whole > 0)
      observer.report(s.terms[n].name, scalar(norm(terms[n], counted.pairs) / whole), scalar(1));
  if (terms[0].defined() || terms[1].defined())
    report_matrix(observer, s, composition.matrix(), counted.queries);
  report_branch(observer, s.query, tokens.query, call.mask.query_length, call.alive);
  report_branch(observer, s.key, tokens.key, call.mask.key_length, call.alive);
}

const std::vector<Statistic>& composed_map_statistics() {
  static const std::vector<Statistic> table{
      {.name = "composed_mass",
       .long_name = "size of the composed weights of a row",
       .formula = "mean over rows of sum_j |a'|, a' the weights that meet the values"},
      {.name = "composed_negative_share",
       .long_name = "negative share of the composed weights",
       .formula = "mean over rows of sum_j max(-a', 0) / sum_j |a'|"},
      {.name = "composed_entropy",
       .units = "nat",
       .long_name = "entropy of the sizes of the composed weights of a row",
       .formula = "mean over rows of -sum_j s ln s, s = |a'| / sum_j |a'|"},
      {.name = "composed_cosine",
       .long_name = "how alike the composed weights of two heads are",
       .formula = "mean over pairs of heads of the cosine of a', over all rows and keys",
       .per = Per::kLayer},
      {.name = "composed_effective_rank",
       .long_name = "number of heads that the composed weights are worth",
       .formula = "exp(-sum l ln l), l the eigenvalues of C / H, C the cosines of a'",
       .per = Per::kLayer},
      {.name = "softmax_cosine",
       .long_name = "how alike the weights of two heads are before they are composed",
       .formula = "mean over pairs of heads of the cosine of a, over all rows and keys",
       .per = Per::kLayer},
      {.name = "softmax_effective_rank",
       .long_name = "number of heads that the weights are worth before they are composed",
       .formula = "exp(-sum l ln l), l the eigenvalues of C / H, C the cosines of a",
       .per = Per::kLayer}};
  return table;
}

void report_composed_map(HeadObserver& observer, const ComposedMaps& maps,
                         const CountedPairs& counted) {
  if (!observer.wants_statistics() || maps.composed.numel() == 0) return;
  const auto p = maps.weights * counted.pairs, a = maps.composed * counted.pairs;  // [B,H,T,S]
  const auto size = a.abs();
  const auto total = [](const Tensor& x) { return x.sum(-1, /*keepdim=*/false, at::kDouble); };
  const auto mass = total(size), negative = (mass - total(a)) / 2;  // [B,H,T]
  // With s = |a| / mass, -sum s ln s = ln mass - sum |a| ln |a| / mass; |a| = 0 adds nothing.
  const auto logs = total(size.clamp_min(std::numeric_limits<float>::min()).log_().mul_(size));
  report_rows(observer, "composed_mass", mass, counted.rows);
  report_rows(observer, "composed_negative_share", negative / mass, mass > 0);
  report_rows(observer, "composed_entropy", mass.log() - logs / mass, mass > 0);
  report_likeness(observer, "composed_cosine", "composed_effective_rank", a);
  report_likeness(observer, "softmax_cosine", "softmax_effective_rank", p);
}

}  // namespace headlab
