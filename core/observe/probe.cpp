#include "core/observe/probe.h"

#include <cmath>
#include <iterator>
#include <limits>

#include "core/attention/routes.h"
#include "core/heads.h"
#include "core/observe/row_stream.h"
#include "core/torch.h"

namespace headlab {

const std::vector<Statistic>& statistic_table() {
  // The first kRowStatistics entries stand in the order of RowStatistic.
  static const std::vector<Statistic> table{
      {"entropy", "nat", "entropy of the attention row", "mean over rows of -sum_j a ln a", true,
       false, false},
      {"entropy_normalized", "1", "entropy relative to the uniform row",
       "mean over rows with n_i >= 2 of entropy / ln n_i", true, false, false},
      {"max_weight", "1", "largest weight", "mean over rows of max_j a", true, false, false},
      {"confidence", "1", "largest weight on a key that is no separator",
       "mean over rows of max_j a over keys that are not sep or EOS", true, false, false},
      {"mean_distance", "token", "mean distance to the attended key",
       "mean over rows of sum_j a |i-j|", true, true, false},
      {"signed_offset", "token", "mean signed offset to the attended key",
       "mean over rows of sum_j a (j-i); negative looks back", true, true, false},
      {"offset_variance", "token^2", "variance of the offset within a row",
       "mean over rows of sum_j a (j-i)^2 - (sum_j a (j-i))^2", true, true, false},
      {"prev_token", "1", "weight on the previous token", "mean over rows with i >= 1 of a[i,i-1]",
       true, true, false},
      {"next_token", "1", "weight on the next token",
       "mean over rows that have a next key of a[i,i+1]; undefined when causal", true, true, false},
      {"self_token", "1", "weight on the token itself", "mean over rows of a[i,i]", true, true,
       false},
      {"first_token", "1", "weight on the first token",
       "mean over rows of a[i,0]; the sink mass, row 0 counts", true, true, false},
      {"cls_mass", "1", "weight on classifier tokens",
       "mean over rows of the sum of a over keys of class cls", true, false, false},
      {"sep_mass", "1", "weight on separator tokens",
       "mean over rows of the sum of a over keys of class sep", true, false, false},
      {"punctuation_mass", "1", "weight on full stops and commas",
       "mean over rows of the sum of a over keys . and ,", true, false, false},
      {"participation_ratio", "key", "effective number of keys", "mean over rows of 1 / sum_j a^2",
       true, false, false},
      {"value_weighted_norm", "1", "weight times norm of the written value",
       "mean over rows of sum_j a norm(W_O^h v_j)", true, false, false},
      {"output_norm", "1", "norm of the head's output",
       "mean over rows of norm(o_h[i]), before gates and output projection", true, false, false},
      {"induction", "1", "weight on tokens after earlier copies of this one",
       "sum of a over j <= i with token_{j-1} = token_i; mean over rows with such j", false, true,
       false},
      {"duplicate_token", "1", "weight on earlier copies of this token",
       "sum of a over j < i with token_j = token_i; mean over rows with such j", false, true,
       false},
      {"argmax_distance", "token", "distance to the heaviest key",
       "mean over rows of |i - argmax_j a|", false, true, false},
      {"positional_share", "1", "share of rows with the commonest argmax offset",
       "share of the commonest r = argmax_j a - i", true, true, false},
      {"positional_offset", "token", "the commonest argmax offset",
       "r = argmax_j a - i that is commonest; ties: smaller |r|, then the negative", true, true,
       false},
      {"sink_rate", "1", "share of examples that sink into the first token",
       "share of examples whose own mean first_token is > 0.3", false, true, false},
      {"js", "nat", "Jensen-Shannon divergence between heads of a layer",
       "mean over sampled rows of KL(p||m)/2 + KL(q||m)/2, m = (p+q)/2", true, false, true},
  };
  return table;
}

const std::vector<Statistic>& composed_statistics() {
  static const std::vector<Statistic> table{
      {"composed_row_sum", "1", "sum of the composed weights of a row",
       "mean over rows of sum_j a', a' the weights that meet the values", true, false, false},
      {"composed_negative_mass", "1", "negative part of the composed weights of a row",
       "mean over rows of sum_j max(-a', 0)", true, false, false}};
  return table;
}

std::vector<std::string> statistic_names() {
  std::vector<std::string> names;
  for (const auto& s : statistic_table()) names.push_back(s.name);
  return names;
}

std::vector<std::string> default_statistics() {
  std::vector<std::string> names;
  for (const auto& s : statistic_table())
    if (s.always) names.push_back(s.name);
  return names;
}

HeadSums::HeadSums(int64_t H)
    : heads(H),
      sums(H * kRowStatistics),
      counts(H * kRowStatistics),
      offsets(H),
      sink_examples(H),
      examples(H),
      js(H * H),
      js_counts(H * H),
      alive(H, true) {}

void HeadProbe::reset() {
  sums_.clear();
  maps_.clear();
  patterns_.clear();
  outputs_.clear();
  passed_map_ = Tensor();
}

void HeadProbe::enter(int64_t layer, int64_t heads, std::vector<int64_t> head_ids,
                      const std::vector<bool>& alive) {
  layer_ = layer;
  head_ids_ = std::move(head_ids);
  output_weight_ = counted_ = Tensor();
  if (!statistics) return;
  auto& sums = sums_.try_emplace(layer, heads).first->second;
  sums.alive = alive;
}

void HeadProbe::output_weight(const Tensor& weight) { output_weight_ = weight.detach(); }

namespace {

// The commonest argmax offset; ties: the smaller |r|, then the negative one.
std::pair<double, double> commonest(const std::map<int32_t, int64_t>& offsets) {
  int64_t rows = 0, most = 0;
  int32_t best = 0;
  for (const auto& [offset, n] : offsets) {
    rows += n;
    if (n > most || (n == most && std::abs(offset) < std::abs(best))) most = n, best = offset;
  }
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (rows == 0) return {nan, nan};
  return {static_cast<double>(most) / static_cast<double>(rows), static_cast<double>(best)};
}

// The argmax offsets of head row h. Counted densely first: a search of the map for every row would
// cost more than the statistics themselves.
void add_offsets(std::map<int32_t, int64_t>& total, const RowSlots& slots, int64_t h) {
  int32_t low = std::numeric_limits<int32_t>::max(), high = kNoRow;
  auto each_row = [&](auto visit) {
    for (int64_t b = 0; b < slots.B; ++b) {
      const int32_t* rows = slots.offsets + (b * slots.H + h) * slots.blocks * kRowsPerSlot;
      for (int64_t r = 0; r < slots.blocks * kRowsPerSlot; ++r)
        if (rows[r] != kNoRow) visit(rows[r]);
    }
  };
  each_row([&](int32_t offset) { low = std::min(low, offset), high = std::max(high, offset); });
  if (high == kNoRow) return;
  std::vector<int64_t> counts(high - low + 1);
  each_row([&](int32_t offset) { ++counts[offset - low]; });
  for (int32_t offset = low; offset <= high; ++offset)
    if (counts[offset - low] > 0) total[offset] += counts[offset - low];
}

// Slots are joined in their order, so that neither threads nor devices change the order of a sum.
void add_rows(HeadSums& total, const RowSlots& slots, const std::vector<int64_t>& head_ids,
              bool cross, double sink_threshold) {
  for (int64_t h = 0; h < slots.H; ++h) {
    const int64_t head = head_ids[h];
    for (int64_t b = 0; b < slots.B; ++b) {
      double first = 0, rows = 0;
      const int64_t begin = (b * slots.H + h) * slots.blocks;
      for (int64_t slot = begin; slot < begin + slots.blocks; ++slot) {
        const double* sums = slots.sums + slot * kRowStatistics;
        const double* counts = slots.counts + slot * kRowStatistics;
        for (int s = 0; s < kRowStatistics; ++s) {
          total.sums[head * kRowStatistics + s] += sums[s];
          total.counts[head * kRowStatistics + s] += counts[s];
        }
        first += sums[kFirstToken];
        rows += counts[kFirstToken];
      }
      if (rows == 0) continue;
      total.examples[head] += 1;
      total.sink_examples[head] += first / rows > sink_threshold;
    }
    if (!cross) add_offsets(total.offsets[head], slots, h);
  }
}

void add_divergence(HeadSums& total, const RowSlots& slots, const std::vector<int64_t>& head_ids) {
  const int64_t pairs = slots.H * slots.H;
  for (int64_t n = 0; n < slots.B * slots.groups * pairs; ++n) {
    const int64_t to = head_ids[n % pairs / slots.H] * total.heads + head_ids[n % slots.H];
    total.js[to] += slots.js[n];
    total.js_counts[to] += slots.js_counts[n];
  }
}

}  // namespace

void HeadProbe::stream(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                       const HeadContext& ctx, double scale) {
  SampledRows sampled;
  if (divergence)
    sampled = {static_cast<int64_t>(ctx.rng.bits(CounterRng::kRows) % js_stride), js_stride};
  const RowCall call{.q = q,
                     .k = k,
                     .v = v,
                     .out = out,
                     .output_weight = output_weight_,
                     .tokens = tokens,
                     .classes = classes,
                     .class_of_token = class_of_token,
                     .matches = matches,
                     .scale = scale};
  const auto slots = stream_rows(call, ctx, sampled);
  auto& total = sums_.at(layer_);
  add_rows(total, slots, head_ids_, ctx.memory.defined(), sink_threshold);
  add_divergence(total, slots, head_ids_);
}

void HeadProbe::softmax(const Tensor& queries, const Tensor& k, const Tensor& v, const Tensor& out,
                        const HeadContext& ctx, double scale, const Tensor& counted) {
  at::NoGradGuard no_grad;
  counted_ = counted;
  const auto q = level_queries(queries, ctx);
  auto rows = ctx;
  if (counted.defined()) {                   // a row without any key does not count
    const auto own = counted.unsqueeze(-1);  // [B,H,T,1]
    rows.mask.allowed = ctx.mask.allowed.defined() ? ctx.mask.allowed & own : own;
  }
  if (statistics && q.numel() > 0) stream(q, k, v, out, rows, scale);
  if (!maps && !patterns) return;
  const auto map = masked_softmax(scores(q, k, ctx, scale),
                                  allowed_keys(ctx.mask, q.size(2), k.size(2), q.device()));
  if (maps) keep_map(map);
  if (patterns) patterns_[layer_] = {map.detach(), rows.mask};
}

void HeadProbe::keep_map(const Tensor& map) { maps_[layer_] = map.detach(); }  // [B,H,T,S]

void HeadProbe::weights(const Tensor& p, const Tensor& a, const Tensor& v, const Tensor& out,
                        const HeadContext& ctx) {
  at::NoGradGuard no_grad;
  if (maps) keep_map(a);
  if (patterns) patterns_[layer_] = {p.detach(), ctx.mask};
  if (!statistics || p.numel() == 0) return;
  const int64_t B = p.size(0), H = p.size(1), T = p.size(2), S = p.size(3);
  // p is the softmax of ln p: with that as the bias of scores that are 0 it streams like any other.
  auto rows = ctx;
  rows.position_bias = nullptr;
  rows.bias = p.clamp_min(std::numeric_limits<float>::min()).log();
  const auto none = p.new_zeros({1, 1, 1, 1});
  stream(none.expand({B, H, T, 1}), none.expand({B, v.size(1), S, 1}), v, out, rows, 0);
  if (p.is_same(a)) return;
  auto counts = p.sum(-1) > 0.5;  // [B,H,T] rows with an allowed key
  if (const auto real = within_length(ctx.mask.query_length, T, p.device()); real.defined())
    counts &= real.unsqueeze(1);  // [B,1,T]
  const auto weigh = [&](const Tensor& of_row) {
    return at::where(counts, of_row.to(at::kDouble), 0.0).sum(at::IntArrayRef({0, 2}));  // [H]
  };
  const auto rows_of_head = counts.sum(at::IntArrayRef({0, 2}));
  report("composed_row_sum", weigh(a.sum(-1)), rows_of_head);
  report("composed_negative_mass", weigh(a.clamp_max(0).sum(-1).neg()), rows_of_head);
}

Tensor HeadProbe::map_before(const Tensor& map) {
  at::NoGradGuard no_grad;
  const auto& lives = sums_.at(layer_).alive;
  std::vector<int64_t> rows, heads;  // alive: own rows, original heads
  for (int64_t h = 0; h < std::ssize(head_ids_); ++h)
    if (lives[head_ids_[h]]) rows.push_back(h), heads.push_back(head_ids_[h]);
  const auto index = [&](const std::vector<int64_t>& of) {
    return at::tensor(of, at::kLong).to(map.device());
  };
  auto full = map.new_zeros({map.size(0), std::ssize(lives), map.size(2), map.size(3)});
  full.index_copy_(1, index(heads), map.index_select(1, index(rows)));
  std::swap(full, passed_map_);
  const bool fits =
      full.defined() && full.sizes() == passed_map_.sizes() && passed_layer_ == layer_ - 1;
  passed_layer_ = layer_;
  return fits ? full.index_select(1, index(head_ids_)) : Tensor();  // [B,H,T,S]
}

void HeadProbe::outputs_of(const Tensor& o, const Tensor& said) {
  if (outputs) outputs_[layer_] = {o.detach(), said.detach(), output_weight_, counted_};
}

void HeadProbe::report(const std::string& name, const Tensor& sums, const Tensor& counts) {
  if (!statistics) return;
  const auto sum = sums.detach().to(at::kCPU, at::kDouble).contiguous();
  const auto count = counts.detach().to(at::kCPU, at::kDouble).contiguous();
  auto& layer = sums_.at(layer_);
  auto& own = layer.own[name];
  own.by_layer = sums.dim() == 0;
  own.sums.resize(own.by_layer ? 1 : layer.heads);
  own.counts.resize(own.sums.size());
  for (int64_t n = 0; n < sum.numel(); ++n) {
    const int64_t to = own.by_layer ? 0 : head_ids_[n];
    own.sums[to] += sum.const_data_ptr<double>()[n];
    own.counts[to] += count.const_data_ptr<double>()[n];
  }
}

void add_sums(HeadSums& to, const HeadSums& from) {
  const auto add = [](auto& sums, const auto& more) {
    for (size_t n = 0; n < more.size(); ++n) sums[n] += more[n];
  };
  add(to.sums, from.sums), add(to.counts, from.counts);
  add(to.sink_examples, from.sink_examples), add(to.examples, from.examples);
  add(to.js, from.js), add(to.js_counts, from.js_counts);
  for (int64_t h = 0; h < from.heads; ++h)
    for (const auto& [offset, rows] : from.offsets[h]) to.offsets[h][offset] += rows;
}

std::map<std::string, std::vector<double>> head_values(const HeadSums& s) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  auto mean = [&](double sum, double count) { return count > 0 ? sum / count : nan; };
  std::map<std::string, std::vector<double>> out;
  for (const auto& statistic : statistic_table())
    out[statistic.name].assign(statistic.by_pair ? s.heads * s.heads : s.heads, nan);
  for (int64_t h = 0; h < s.heads; ++h) {
    if (!s.alive[h]) continue;
    for (int n = 0; n < kRowStatistics; ++n)
      out[statistic_table()[n].name][h] =
          mean(s.sums[h * kRowStatistics + n], s.counts[h * kRowStatistics + n]);
    std::tie(out["positional_share"][h], out["positional_offset"][h]) = commonest(s.offsets[h]);
    out["sink_rate"][h] = mean(s.sink_examples[h], s.examples[h]);
    for (int64_t g = h * s.heads; g < (h + 1) * s.heads; ++g)
      if (s.alive[g % s.heads]) out["js"][g] = mean(s.js[g], s.js_counts[g]);
  }
  for (const auto& [name, own] : s.own) {
    auto& values = out[name];
    for (size_t n = 0; n < own.sums.size(); ++n) {
      const bool gone = !own.by_layer && !s.alive[n];
      values.push_back(gone ? nan : mean(own.sums[n], own.counts[n]));
    }
  }
  finish_routes(s.heads, out);
  return out;
}

}  // namespace headlab
