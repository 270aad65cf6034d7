#include "core/probe.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "core/heads.h"

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
}

void HeadProbe::enter(int64_t layer, int64_t heads, std::vector<int64_t> head_ids,
                      const std::vector<bool>& alive, const HeadContext&) {
  layer_ = layer;
  head_ids_ = std::move(head_ids);
  output_weight_ = Tensor();
  if (!statistics) return;
  auto& sums = sums_.try_emplace(layer, heads).first->second;
  sums.alive = alive;
}

void HeadProbe::output_weight(const Tensor& weight) { output_weight_ = weight.detach(); }

namespace {

template <class T>
Tensor dense_rows(const Tensor& t) {
  auto x = t.detach().to(at::kCPU, at::CppTypeToScalarType<T>::value);
  return x.stride(-1) == 1 || x.size(-1) == 1 ? x : x.contiguous();
}

// Keeps alive what a RowProblem points into.
struct Held {
  std::vector<Tensor> tensors;
  template <class T>
  T* operator()(const Tensor& t) {
    tensors.push_back(t);
    return static_cast<T*>(t.data_ptr());
  }
};

void copy_strides(const Tensor& t, int64_t* strides, int n) {
  for (int i = 0; i < n; ++i) strides[i] = t.stride(i);
}

template <class T>
RowProblem<T> describe_rows(const Tensor& q, const Tensor& k, const HeadContext& ctx, double scale,
                            Held& held) {
  RowProblem<T> p{};
  auto queries = dense_rows<T>(q), keys = dense_rows<T>(k);
  p.B = q.size(0), p.H = q.size(1), p.queries = q.size(2), p.d = q.size(3), p.keys = k.size(2);
  p.q = held.operator()<T>(queries), p.k = held.operator()<T>(keys);
  copy_strides(queries, p.q_stride, 3);
  copy_strides(keys, p.k_stride, 3);
  auto kv = ctx.kv_map.defined()
                ? ctx.kv_map.to(at::kCPU)
                : at::arange(p.H).floor_divide_(std::max<int64_t>(1, p.H / k.size(1)));
  p.kv_head = held.operator()<int64_t>(kv.contiguous());
  p.scale = scale;
  p.causal = ctx.mask.causal;
  p.window = ctx.mask.window;
  p.cross = ctx.memory.defined();
  auto lengths = [&](const Tensor& t) -> const int64_t* {
    return t.defined() ? held.operator()<int64_t>(t.to(at::kCPU, at::kLong).contiguous()) : nullptr;
  };
  p.query_length = lengths(ctx.mask.query_length);
  p.key_length = lengths(ctx.mask.key_length);
  const std::vector<int64_t> map{p.B, p.H, p.queries, p.keys};
  if (ctx.mask.allowed.defined()) {
    auto allowed = ctx.mask.allowed.to(at::kCPU).expand(map);
    p.allowed = held.operator()<bool>(allowed);
    copy_strides(allowed, p.allowed_stride, 4);
  }
  if (ctx.bias.defined()) {
    auto bias = ctx.bias.detach().to(at::kCPU, at::CppTypeToScalarType<T>::value).expand(map);
    p.bias = held.operator()<T>(bias);
    copy_strides(bias, p.bias_stride, 4);
  }
  if (ctx.position_bias) {
    auto table = ctx.position_bias->by_distance(1 - p.keys, p.queries - 1);
    if (ctx.head_ids.defined()) table = table.index_select(0, ctx.head_ids);
    p.distance_bias = held.operator()<T>(dense_rows<T>(table).contiguous());
  }
  return p;
}

template <class T>
void describe_values(RowProblem<T>& p, const Tensor& v, const Tensor& out,
                     const Tensor& output_weight, Held& held) {
  auto outputs = dense_rows<T>(out);
  p.e = out.size(3);
  p.output = held.operator()<T>(outputs);
  copy_strides(outputs, p.output_stride, 3);
  if (!output_weight.defined()) return;
  auto values = dense_rows<T>(v), weight = dense_rows<T>(output_weight);
  p.v = held.operator()<T>(values);
  copy_strides(values, p.v_stride, 3);
  p.output_weight = held.operator()<T>(weight);
  p.output_weight_stride = weight.stride(0);
  p.D = weight.size(0);
  p.value_norm = held.operator()<T>(
      at::empty({p.B, p.H, p.keys}, at::TensorOptions(at::CppTypeToScalarType<T>::value)));
}

// Runs body(slot, scratch) over all slots, each thread with scratch of its own.
template <class T, class Body>
void over_slots(int64_t slots, int64_t scratch, Body body) {
  at::parallel_for(0, slots, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> buffer(scratch + 16);
    for (int64_t slot = begin; slot < end; ++slot) body(slot, buffer.data());
  });
}

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

}  // namespace

// Sums are made in fixed slots (b, h, block of rows) and joined in the order of slots, so that the
// number of threads changes no bit.
template <class T>
void HeadProbe::stream(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                       const HeadContext& ctx, double scale) {
  TORCH_CHECK(q.size(1) <= 1024, "statistics: at most 1024 heads a layer, are ", q.size(1));
  Held held;
  auto p = describe_rows<T>(q, k, ctx, scale, held);
  describe_values<T>(p, v, out, output_weight_, held);
  if (tokens.defined() && !p.cross) {
    const auto ids = tokens.to(at::kCPU).contiguous();
    p.tokens = held.operator()<int64_t>(ids);
    if (class_of_token.defined())
      p.classes = held.operator()<uint8_t>(class_of_token.index({ids}).contiguous());
  }
  if (classes.defined()) p.classes = held.operator()<uint8_t>(classes.contiguous());
  p.matches = matches;
  if (p.value_norm) {
    const int64_t width = (p.e + 15) / 16 * 16;
    over_slots<T>(p.H, (p.e + 1) * width,
                  [&](int64_t h, T* scratch) { norm_slot<T>()(p, h, scratch); });
  }
  const int64_t slots = row_slots(p), blocks = slots / (p.B * p.H);
  std::vector<double> sums(slots * kRowStatistics), counts(slots * kRowStatistics);
  std::vector<int32_t> offsets(slots * kRowsPerSlot, kNoRow);
  over_slots<T>(slots, row_scratch(p), [&](int64_t slot, T* scratch) {
    row_stats_slot<T>()(p, slot, &sums[slot * kRowStatistics], &counts[slot * kRowStatistics],
                        &offsets[slot * kRowsPerSlot], scratch);
  });
  auto& total = sums_.at(layer_);
  for (int64_t h = 0; h < p.H; ++h) {
    const int64_t head = head_ids_[h];
    for (int64_t b = 0; b < p.B; ++b) {
      double first = 0, rows = 0;
      for (int64_t slot = (b * p.H + h) * blocks; slot < (b * p.H + h + 1) * blocks; ++slot) {
        for (int s = 0; s < kRowStatistics; ++s) {
          total.sums[head * kRowStatistics + s] += sums[slot * kRowStatistics + s];
          total.counts[head * kRowStatistics + s] += counts[slot * kRowStatistics + s];
        }
        first += sums[slot * kRowStatistics + kFirstToken];
        rows += counts[slot * kRowStatistics + kFirstToken];
        if (p.cross) continue;
        for (int64_t r = 0; r < kRowsPerSlot; ++r)
          if (offsets[slot * kRowsPerSlot + r] != kNoRow)
            ++total.offsets[head][offsets[slot * kRowsPerSlot + r]];
      }
      if (rows == 0) continue;
      total.examples[head] += 1;
      total.sink_examples[head] += first / rows > sink_threshold;
    }
  }
  if (!divergence) return;
  const int64_t start = static_cast<int64_t>(ctx.rng.bits(CounterRng::kRows) % js_stride);
  const int64_t sampled = p.queries > start ? (p.queries - start - 1) / js_stride + 1 : 0;
  const int64_t groups = (sampled + kJsRowsPerSlot - 1) / kJsRowsPerSlot, pairs = p.H * p.H;
  std::vector<double> js(p.B * groups * pairs), js_counts(p.B * groups * pairs);
  over_slots<T>(p.B * groups, js_scratch(p), [&](int64_t slot, T* scratch) {
    js_slot<T>()(p, slot / groups, start + slot % groups * kJsRowsPerSlot * js_stride, js_stride,
                 &js[slot * pairs], &js_counts[slot * pairs], scratch);
  });
  for (int64_t slot = 0; slot < p.B * groups; ++slot)
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const int64_t to = head_ids_[pair / p.H] * total.heads + head_ids_[pair % p.H];
      total.js[to] += js[slot * pairs + pair];
      total.js_counts[to] += js_counts[slot * pairs + pair];
    }
}

void HeadProbe::softmax(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                        const HeadContext& ctx, double scale) {
  at::NoGradGuard no_grad;
  if (statistics && q.numel() > 0) {
    if (q.scalar_type() == at::kDouble)
      stream<double>(q, k, v, out, ctx, scale);
    else
      stream<float>(q, k, v, out, ctx, scale);
  }
  if (maps) {
    const int64_t T = q.size(2), S = k.size(2);
    auto allowed = allowed_keys(ctx.mask, T, S, 0, T, q.device());
    auto map = masked_softmax(scores(q, k, ctx, scale), allowed);
    maps_[layer_] = map;  // [B,H,T,S]
  }
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
  return out;
}

}  // namespace headlab
