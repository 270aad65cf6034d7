#include "core/observe/probe.h"

#include <array>
#include <iterator>
#include <limits>
#include <utility>

#include "core/attention/attend.h"
#include "core/observe/row_stream.h"
#include "core/torch.h"

namespace headlab {
namespace {

std::string declared(const HeadSums& sums) {
  std::string names;
  for (const auto& own : sums.own) names += (names.empty() ? "" : ", ") + own.name;
  return names.empty() ? "none" : names;
}

// What report() wants of a statistic of `heads` heads, each of `experts`.
struct Wanted {
  std::vector<int64_t> sizes;
  std::string in_words;
};
Wanted wanted(Per per, int64_t heads, int64_t experts) {
  const auto H = std::to_string(heads);
  switch (per) {
    case Per::kLayer:
      return {{}, "scalars"};
    case Per::kHead:
      return {{heads}, "[H] = [" + H + "]"};
    case Per::kPair:
      return {{heads, heads}, "[H,H] = [" + H + "," + H + "]"};
    case Per::kExpert:
      return {{heads, experts}, "[H,E] = [" + H + ",E]"};
  }
  return {};
}

std::vector<double> numbers(const Tensor& t) {
  const auto x = t.detach().to(at::kCPU, at::kDouble).contiguous();
  return {x.const_data_ptr<double>(), x.const_data_ptr<double>() + x.numel()};
}

constexpr double kNothing = 1e-12;  // a row that sums to less has no pattern

// What rows share out, of those that share anything out.
HeadProbe::Pattern pattern_of(const ObservedMap& map, const AttentionMask& mask) {
  const auto p = map.p.detach();
  if (map.rows_sum_to_one) return {p, mask};
  const auto sums = p.sum(-1, /*keepdim=*/true);
  auto seen = mask;
  seen.allowed = both_allowed(mask.allowed, sums >= kNothing);
  return {p / sums.clamp_min(kNothing), seen};
}

}  // namespace

void HeadProbe::reset() {
  sums_.clear();
  maps_.clear();
  patterns_.clear();
  outputs_.clear();
  passed_map_ = Tensor();
}

void HeadProbe::add_sums(const ProbeSums& more) {
  for (const auto& [key, sums] : more)
    if (const auto [mine, is_new] = sums_.emplace(key, sums); !is_new)
      headlab::add_sums(mine->second, sums);
}

void HeadProbe::enter(ObservedLayer layer) {
  layer_ = std::move(layer);
  if (layer_.output_weight.defined()) layer_.output_weight = layer_.output_weight.detach();
  counted_ = Tensor();
  if (statistics) sums_of(0);
}

std::map<std::string, std::vector<double>> HeadProbe::values(const MapKey& key) const {
  auto all = head_values(sums_.at(key));
  for (int64_t map = key.map + 1; sums_.contains({key.site, key.layer, map}); ++map) {
    const auto of_map = head_values(sums_.at({key.site, key.layer, map}));
    for (const auto& own : sums_.at(key).own)
      if (own.map == map) all[own.name] = of_map.at(own.of_rows);
  }
  return all;
}

HeadSums& HeadProbe::sums_of(int64_t map) {
  auto& sums = sums_.try_emplace(key(map), layer_.heads, layer_.own).first->second;
  sums.alive = layer_.alive;
  return sums;
}

Tensor HeadProbe::token_classes() const {
  if (classes.defined() || !class_of_token.defined() || !tokens.defined()) return classes;
  return class_of_token.to(tokens.device()).index({tokens});
}

void HeadProbe::stream(const AttentionCall& call, CountedRows rows, int64_t map) {
  SampledRows sampled;
  if (divergence)
    sampled = {static_cast<int64_t>(call.rng.bits(CounterRng::kRows) % js_stride), js_stride};
  rows.output_weight = layer_.output_weight;
  rows.tokens = tokens;
  if (layer_.map == HeadMap::kTokens) rows.classes = call.places ? token_classes() : classes;
  rows.matches = matches;
  add_rows(sums_of(map), stream_rows(call, rows, sampled), layer_.head_ids, call.places,
           sink_threshold);
}

void HeadProbe::softmax(const AttentionCall& call, const Tensor& out, const Tensor& counted) {
  at::NoGradGuard no_grad;
  counted_ = counted;
  auto rows = call;  // that count: a row without any key does not
  if (counted.defined()) rows.allowed = both_allowed(call.allowed, counted.unsqueeze(-1));
  if (statistics && call.q.numel() > 0) stream(rows, {.out = out}, 0);
  if (!maps && !patterns) return;
  const auto map = masked_softmax(call.scores(), call.allowed_keys());
  if (maps) maps_[key()] = map.detach();  // [B,H,T,S]
  if (patterns) patterns_[key()] = {map.detach(), rows.mask()};
}

void HeadProbe::weights(const ObservedMap& map, const HeadCall& call) {
  at::NoGradGuard no_grad;
  const auto &p = map.p, &a = map.a;
  auto counted = call.mask;  // of rows that count: one without any key does not
  if (map.counted.defined())
    counted.allowed = both_allowed(counted.allowed, map.counted.unsqueeze(-1));  // [B,H,T,1]
  if (maps) maps_[key(map.map)] = a.detach();                                    // [B,H,T,S]
  if (patterns) patterns_[key(map.map)] = pattern_of(map, counted);
  if (!statistics || p.numel() == 0) return;
  const int64_t B = p.size(0), H = p.size(1), T = p.size(2), S = p.size(3);
  // p is the softmax of its scores, or of ln p: with those as the bias of scores that are 0 it
  // streams like any other, whatever its rows sum to; but a row that sums to nothing has no
  // pattern.
  TORCH_CHECK(!map.scores.defined() || map.scores.sizes() == p.sizes(), "scores ",
              map.scores.sizes(), " of weights ", p.sizes());
  const bool by_scores = map.softmax && map.scores.defined();
  auto own = call;
  own.mask = counted, own.bias = Tensor(), own.position_bias = nullptr;
  const auto none = p.new_zeros({1, 1, 1, 1});
  AttentionCall rows(none.expand({B, H, T, 1}), none.expand({B, map.v.size(1), S, 1}), map.v, own,
                     /*scale=*/0);
  rows.bias = by_scores ? map.scores : p.clamp_min(std::numeric_limits<float>::min()).log();
  if (!map.rows_sum_to_one)
    rows.allowed = both_allowed(rows.allowed, (p.sum(-1) >= kNothing).unsqueeze(-1));
  const auto sums = map.row_sums.defined() || map.rows_sum_to_one ? map.row_sums : p.sum(-1);
  stream(rows, {.out = map.out, .row_sums = sums, .has_scores = by_scores}, map.map);
  if (map.scores.defined() && !by_scores) raise_scores(map, counted);
  if (!map.mixed || p.is_same(a)) return;
  const auto counts =
      counted_pairs(p, allowed_keys(call.mask, T, S, p.device()), call.mask).any(-1);
  report_rows(*this, "composed_row_sum", a.sum(-1), counts);
  report_rows(*this, "composed_negative_mass", a.clamp_max(0).sum(-1).neg(), counts);
  if (call.places) report_rows(*this, "composed_first_token", a.select(3, 0), counts);
}

void HeadProbe::raise_scores(const ObservedMap& map, const AttentionMask& mask) {
  const double low = -std::numeric_limits<double>::infinity();
  const auto z = widened(map.scores);
  const auto allowed = allowed_keys(mask, z.size(2), z.size(3), z.device());
  const auto highest = at::where(counted_pairs(z, allowed, mask), z, low).amax(-1);  // [B,H,T]
  const auto counted = highest > low;  // as in the kernels: none allowed, or NaN
  const auto most = numbers(at::where(counted, highest, low).amax(at::IntArrayRef({0, 2})));  // [H]
  auto& sums = sums_of(map.map);
  for (size_t h = 0; h < most.size(); ++h) sums.raise(layer_.head_ids[h], kMaxLogit, most[h]);
}

Tensor HeadProbe::map_before(const Tensor& map) {
  at::NoGradGuard no_grad;
  const auto& is_alive = layer_.alive;
  std::vector<int64_t> rows, heads;  // alive: own rows, original heads
  for (int64_t h = 0; h < std::ssize(layer_.head_ids); ++h)
    if (is_alive[layer_.head_ids[h]]) rows.push_back(h), heads.push_back(layer_.head_ids[h]);
  const auto index = [&](const std::vector<int64_t>& of) {
    return at::tensor(of, at::kLong).to(map.device());
  };
  auto full = map.new_zeros({map.size(0), std::ssize(is_alive), map.size(2), map.size(3)});
  full.index_copy_(1, index(heads), map.index_select(1, index(rows)));
  std::swap(full, passed_map_);
  const MapKey before(layer_.site, layer_.layer - 1, 0);
  const bool fits = full.defined() && full.sizes() == passed_map_.sizes() && passed_from_ == before;
  passed_from_ = key();
  return fits ? full.index_select(1, index(layer_.head_ids)) : Tensor();  // [B,H,T,S]
}

void HeadProbe::outputs(const Tensor& o, const Tensor& edited, const HeadCall& call) {
  if (statistics && layer_.map == HeadMap::kNone) add_output_norms(o, call.mask);
  if (head_outputs) outputs_[key()] = {o.detach(), edited.detach(), layer_.output_weight, counted_};
}

// Where there is a map they are streamed with its rows.
void HeadProbe::add_output_norms(const Tensor& o, const AttentionMask& mask) {
  at::NoGradGuard no_grad;
  const auto norms = o.to(at::kDouble).norm(2, -1, /*keepdim=*/true);  // [B,H,T,1]
  const auto counted = counted_pairs(norms, {}, mask);
  const std::array<int64_t, 3> rows{0, 2, 3};  // all but the heads
  const auto sums = numbers(at::where(counted, norms, 0).sum(rows));
  const auto counts = numbers(counted.sum(rows));
  auto& layer = sums_of(0);
  for (size_t h = 0; h < sums.size(); ++h)
    layer.add(layer_.head_ids[h], kOutputNorm, sums[h], counts[h]);
}

void HeadProbe::report(const std::string& name, const Tensor& sums, const Tensor& counts) {
  if (!statistics) return;
  auto& layer = sums_of(0);
  auto* own = layer.find_own(name);
  TORCH_CHECK(own, "statistic '", name, "' is none that layer ", layer_.layer,
              " declares in own_statistics(): ", declared(layer));
  const int64_t H = std::ssize(layer_.head_ids);
  const auto [sizes, in_words] = wanted(own->per, H, sums.dim() == 2 ? sums.size(1) : 0);
  TORCH_CHECK(sums.sizes() == sizes && counts.sizes() == sizes, "statistic '", name, "': sums are ",
              sums.sizes(), " and counts ", counts.sizes(), ", expected ", in_words, " both");
  const auto sum = numbers(sums), count = numbers(counts);
  const int64_t each = H > 0 ? std::ssize(sum) / H : 0;  // numbers of a head
  if (own->sums.empty() && own->per == Per::kExpert)
    own->sums.resize(layer.heads * each), own->counts.resize(layer.heads * each);
  TORCH_CHECK(own->per != Per::kExpert || std::ssize(own->sums) == layer.heads * each,
              "statistic '", name, "': ", each, " experts after ",
              std::ssize(own->sums) / layer.heads);
  for (int64_t n = 0; n < std::ssize(sum); ++n) {
    int64_t to = 0;
    if (own->per != Per::kLayer)
      to = layer_.head_ids[n / each] * (std::ssize(own->sums) / layer.heads) +
           (own->per == Per::kPair ? layer_.head_ids[n % each] : n % each);
    own->add(to, sum[n], count[n]);
  }
}

}  // namespace headlab
