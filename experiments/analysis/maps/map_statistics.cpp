#include "experiments/analysis/maps/map_statistics.h"

#include <algorithm>
#include <limits>
#include <set>

#include "core/attention/random.h"
#include "core/torch.h"
#include "experiments/analysis/maps/map_divergence.h"
#include "experiments/analysis/maps/map_formulas.h"
#include "experiments/analysis/maps/single_threaded.h"
#include "experiments/logs/result_arrays.h"

namespace headlab {
namespace {

int64_t length_in(const Tensor& lengths, int64_t b, int64_t most) {
  return lengths.defined() ? std::min(most, lengths[b].item<int64_t>()) : most;
}

void add_heads(const ExampleMap& e, const RowValues& of, double* sums, double* counts) {
  const auto flat = [&](const Tensor& t) { return t.reshape({std::ssize(e.map.heads), -1}); };
  const auto sum = flat(at::where(of.counted, of.value, 0.0)).sum(-1);
  const auto count = flat(of.counted).sum(-1);
  for (int64_t n = 0; n < sum.size(0); ++n) {
    sums[e.map.heads[n]] += sum[n].item<double>();
    counts[e.map.heads[n]] += count[n].item<double>();
  }
}

// sums, counts [H,H] of the layer. Rows that do not count are 0. By sums along the rows, whose
// order is always the same: that of a product of matrices is the library's to choose.
void add_overlap(const ExampleMap& e, int64_t H, double* sums, double* counts) {
  const auto counted = e.rows.counted[0].to(at::kDouble);           // [n,T]
  const auto a = (e.rows.a[0] * counted.unsqueeze(-1)).flatten(1);  // [n,TS]
  for (int64_t n = 0; n < a.size(0); ++n) {
    const auto overlap = (a.slice(0, n) * a[n]).sum(-1),
               both = (counted.slice(0, n) * counted[n]).sum(-1);
    for (int64_t m = n; m < a.size(0); ++m)
      for (const auto& [row, column] : std::set<std::pair<int64_t, int64_t>>{{n, m}, {m, n}}) {
        const int64_t to = e.map.heads[row] * H + e.map.heads[column];
        sums[to] += overlap[m - n].item<double>();
        counts[to] += both[m - n].item<double>();
      }
  }
}

// The heads of all layers as one list: their rows [N,T,S], which count [N,T], and what they are.
struct AllHeads {
  Tensor p, counted;
  std::vector<int64_t> ids;  // layer * H + head

  AllHeads(const std::vector<std::optional<ExampleMap>>& layers, int64_t H) {
    std::vector<Tensor> weights, rows;
    for (size_t l = 0; l < layers.size(); ++l) {
      if (!layers[l]) continue;
      weights.push_back(layers[l]->rows.a[0]);
      rows.push_back(layers[l]->rows.counted[0]);
      for (int64_t h : layers[l]->map.heads) ids.push_back(static_cast<int64_t>(l) * H + h);
    }
    if (weights.empty()) return;
    p = at::cat(weights), counted = at::cat(rows);
  }

  // Adds the [N,N] of this list to the [all,all] of all heads.
  void add_divergence(const Tensor& of, const Tensor& rows, int64_t all, double* sums,
                      double* counts) const {
    const int64_t N = std::ssize(ids);
    std::vector<double> sum(N * N), count(N * N);
    headlab::add_divergence(of, rows, sum.data(), count.data());
    for (int64_t n = 0; n < N * N; ++n) {
      const int64_t to = ids[n / N] * all + ids[n % N];
      sums[to] += sum[n], counts[to] += count[n];
    }
  }
};

}  // namespace

LayerMap example_of(const LayerMap& map, int64_t b) {
  const auto& f = map.context;
  const int64_t T = map.a.size(2), S = map.a.size(3);
  const int64_t t = length_in(f.query_length, b, T), s = length_in(f.key_length, b, S);
  // Queries stand at the last keys: rows and columns are cut off together or not at all.
  const bool cut = f.cross || (T == S && t == s);
  const auto of = [&](const Tensor& x, int64_t dim, int64_t size) {
    if (!x.defined()) return x;
    const auto one = x.narrow(0, b, 1);
    return (cut ? one.narrow(dim, 0, size) : one).to(at::kCPU);
  };
  const auto block = [&](const Tensor& x) {  // [B,n,T,S]
    return cut ? of(x, 2, t).narrow(3, 0, s) : of(x, 2, t);
  };
  LayerMap example{.a = block(map.a), .heads = map.heads, .context = f};
  auto& context = example.context;
  if (f.allowed.defined()) context.allowed = block(f.allowed.expand(map.a.sizes()));
  for (auto* by_key : {&context.tokens, &context.classes, &context.frequency_rank})
    *by_key = of(*by_key, 1, s);
  context.value_norm = of(f.value_norm, 2, s);
  context.output = of(f.output, 2, t);
  if (f.scores.defined()) context.scores = block(f.scores);
  for (auto* length : {&context.query_length, &context.key_length})
    *length = cut || !length->defined() ? Tensor() : length->narrow(0, b, 1).to(at::kCPU);
  return example;
}

MapStatistics::MapStatistics(int64_t layers, int64_t heads, MapStatisticsOptions options)
    : layers_(layers), heads_(heads), options_(std::move(options)), total_(zeros()) {}

MapStatistics::AllSums MapStatistics::zeros() const {
  AllSums all;
  const int64_t N = layers_ * heads_;
  for (const auto& s : map_statistic_table()) {
    if (std::ranges::find(options_.names, s.name) == options_.names.end()) continue;
    int64_t size = N;
    if (s.dims == MapDims::kHeadsOfLayer) size = N * heads_;
    if (s.dims == MapDims::kAllHeads) size = N * N;
    if (s.dims == MapDims::kAllHeads && N > kMostDivergingHeads) continue;
    all[s.name] = {std::vector<double>(size), std::vector<double>(size)};
  }
  return all;
}

void MapStatistics::add_example(AllSums& to, const std::vector<LayerMap>& layers,
                                int64_t number) const {
  std::vector<std::optional<ExampleMap>> examples(layers.size());
  for (size_t l = 0; l < layers.size(); ++l)
    if (layers[l].a.defined() && layers[l].a.numel() > 0) examples[l].emplace(layers[l], options_);
  for (size_t l = 0; l < layers.size(); ++l) {
    if (!examples[l]) continue;
    const auto& e = *examples[l];
    for (const auto& statistic : map_statistic_table()) {
      const auto found = to.find(statistic.name);
      if (found == to.end() || !statistic.values || !statistic.exists(e.context())) continue;
      auto& [sums, counts] = found->second;
      add_heads(e, statistic.values(e), sums.data() + l * heads_, counts.data() + l * heads_);
    }
    if (const auto found = to.find("attention_overlap"); found != to.end())
      add_overlap(e, heads_, found->second.sums.data() + l * heads_ * heads_,
                  found->second.counts.data() + l * heads_ * heads_);
  }
  const auto js = to.find("js"), clark = to.find("js_clark");
  if (js == to.end() && clark == to.end()) return;
  const AllHeads all(examples, heads_);
  if (!all.p.defined()) return;
  const int64_t N = layers_ * heads_;
  if (js != to.end()) {
    auto rows = at::arange(all.p.size(1));
    if (options_.js_stride > 1)
      rows = at::arange(static_cast<int64_t>(mix_bits(options_.seed ^ mix_bits(number)) %
                                             static_cast<uint64_t>(options_.js_stride)),
                        std::max(options_.js_stride, all.p.size(1)), options_.js_stride);
    rows = rows.masked_select(rows < all.p.size(1));
    all.add_divergence(all.p.index_select(1, rows), all.counted.index_select(1, rows), N,
                       js->second.sums.data(), js->second.counts.data());
  }
  if (clark != to.end())
    all.add_divergence(smooth_rows(all.p), all.counted, N, clark->second.sums.data(),
                       clark->second.counts.data());
}

void MapStatistics::add(const std::vector<LayerMap>& layers) {
  at::NoGradGuard no_grad;
  TORCH_CHECK(std::ssize(layers) == layers_, "maps of ", layers.size(), " layers for ", layers_);
  if (total_.empty()) return;
  int64_t B = 0;
  for (const auto& map : layers) {
    if (!map.a.defined()) continue;
    TORCH_CHECK(map.a.dim() == 4 && map.a.size(1) == std::ssize(map.heads), "maps ", map.a.sizes(),
                " of ", map.heads.size(), " heads");
    TORCH_CHECK(B == 0 || B == map.a.size(0), "maps of ", map.a.size(0), " and of ", B,
                " examples");
    B = map.a.size(0);
  }
  // A few examples at a time: their sums are joined in the examples' order.
  constexpr int64_t kTogether = 8;
  for (int64_t first = 0; first < B; first += kTogether) {
    std::vector<AllSums> of_example(std::min(kTogether, B - first));
    for_each_single_threaded(std::ssize(of_example), [&](int64_t n) {
      at::NoGradGuard here;  // guards are each thread's own
      std::vector<LayerMap> example;
      for (const auto& map : layers)
        example.push_back(map.a.defined() ? example_of(map, first + n) : LayerMap{});
      of_example[n] = zeros();
      add_example(of_example[n], example, examples_ + first + n);
    });
    for (const auto& sums : of_example)
      for (const auto& [name, more] : sums)
        for (size_t n = 0; n < more.sums.size(); ++n) {
          total_[name].sums[n] += more.sums[n];
          total_[name].counts[n] += more.counts[n];
        }
  }
  examples_ += B;
}

std::map<std::string, std::vector<double>> MapStatistics::values() const {
  std::map<std::string, std::vector<double>> values;
  for (const auto& [name, of] : total_)
    for (size_t n = 0; n < of.sums.size(); ++n) {
      const double whole = name == "js_clark" ? 1 : of.counts[n];
      values[name].push_back(of.counts[n] > 0 ? of.sums[n] / whole : kNaN);
    }
  return values;
}

Tensor rollout(const std::vector<LayerMap>& layers) {
  at::NoGradGuard no_grad;
  const auto some =
      std::ranges::find_if(layers, [](const LayerMap& map) { return map.a.defined(); });
  if (some == layers.end()) return {};
  const int64_t B = some->a.size(0), T = some->a.size(2);
  TORCH_CHECK(!some->context.cross && some->a.size(3) == T,
              "rollout is of self-attention; the map is ", some->a.sizes());
  auto all = at::zeros({std::ssize(layers), B, T, T}, at::kDouble);
  for_each_single_threaded(B, [&](int64_t b) {
    at::NoGradGuard here;
    Tensor before;
    for (size_t l = 0; l < layers.size(); ++l) {
      auto to = all[static_cast<int64_t>(l)][b];
      if (!layers[l].a.defined() || layers[l].a.size(1) == 0) {
        all.narrow(0, static_cast<int64_t>(l), std::ssize(layers) - static_cast<int64_t>(l))
            .select(1, b)
            .fill_(kNaN);
        return;
      }
      const auto example = example_of(layers[l], b);
      const auto rows = pattern_rows(example.a, example.context);
      const int64_t t = rows.a.size(2);
      const auto here_a = (rows.a[0].mean(0) + at::eye(t, at::kDouble)) / 2;  // [t,t]
      before = before.defined() ? at::mm(here_a, before) : here_a;
      to.narrow(0, 0, t).narrow(1, 0, t).copy_(before);
    }
  });
  return all;
}

}  // namespace headlab
