// Analysis of attention maps: of a model's, batch by batch, and those that are kept as they are.
#include <algorithm>
#include <numeric>

#include "core/torch.h"
#include "experiments/analysis/head_measurements.h"
#include "experiments/inference/evaluate.h"
#include "experiments/logs/log_schema.h"

namespace headlab {
namespace {

// By token: 0 the most frequent of the examples that are looked at; ties: the lower token.
Tensor frequency_ranks(const AnalysisSetup& setup) {
  std::vector<int64_t> counts(setup.vocabulary());
  for_each_batch(setup.sample(), at::kCPU, [&](const Batch& batch) {
    const auto ids = batch.tokens_of(setup.heads.site().keys);
    const auto* id = ids.const_data_ptr<int64_t>();
    for (int64_t n = 0; n < ids.numel(); ++n) ++counts[id[n]];
  });
  std::vector<int64_t> tokens(counts.size()), ranks(counts.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  std::stable_sort(tokens.begin(), tokens.end(),
                   [&](int64_t a, int64_t b) { return counts[a] > counts[b]; });
  for (size_t rank = 0; rank < tokens.size(); ++rank)
    ranks[tokens[rank]] = static_cast<int64_t>(rank);
  return at::tensor(ranks, at::kLong);
}

class Maps : public HeadMeasurement {
 public:
  explicit Maps(const AnalysisSetup& setup)
      : HeadMeasurement(setup),
        classes_(setup.token_classes()),
        kept_(setup.options.maps),
        statistics_(setup.heads.layers(), setup.heads.heads(), {}) {}

  std::vector<std::string> names() const override {
    if (!setup_.has_token_map()) return {};
    MapContext context;  // what there will be
    if (!classes_.empty()) context.classes = at::empty({0}, at::kByte);
    context.grid = grid();
    if (setup_.vocabulary() > MapStatisticsOptions().rarest_rank)
      context.frequency_rank = at::empty({0}, at::kLong);
    std::vector<std::string> names{"similarity", "head_map"};
    for (const auto& s : map_statistic_table())
      if (s.exists(context)) names.push_back(s.name);
    if (setup_.options.maps > 0)
      for (const auto& name : KeptMaps::names()) names.push_back(name);
    return names;
  }
  std::vector<std::string> on_request() const override { return {"js_clark"}; }

  void start(const std::vector<std::string>& wanted, HeadProbe& probe) override {
    probe.patterns = true;
    MapStatisticsOptions options{
        .names = wanted,
        .top_k = setup_.options.top_k.value_or(MapStatisticsOptions().top_k),
        .js_stride = setup_.options.js_stride,
        .seed = static_cast<uint64_t>(setup_.run.experiment.seed)};
    const auto wants = [&](const char* name) {
      return std::ranges::find(wanted, name) != wanted.end();
    };
    if (wants("similarity") || wants("head_map")) options.names.push_back("js");
    statistics_ = MapStatistics(setup_.heads.layers(), setup_.heads.heads(), options);
    if (wants("rare_token")) ranks_ = frequency_ranks(setup_);
  }

  void add(const AnalysisBatch& batch) override {
    std::vector<LayerMap> layers;
    for (int64_t l = 0; l < setup_.heads.layers(); ++l) layers.push_back(map_of(batch, l));
    statistics_.add(layers);
    const auto& site = setup_.heads.site();
    kept_.add(layers, batch.data.tokens_of(site.keys),
              site.queries == site.keys ? Tensor() : batch.data.tokens_of(site.queries));
  }

  void finish(LabelledGroup& to) override {
    add_statistics(to, statistics_.values(), setup_.heads.layers(), setup_.heads.heads());
    const auto texts = [&](Tensor Batch::*input) {
      return setup_.options.maps > 0 ? setup_.run.data->token_texts_of(input)
                                     : std::vector<std::string>{};
    };
    const auto& site = setup_.heads.site();
    kept_.finish(to, setup_.heads.layers(), setup_.heads.heads(), texts(site.keys),
                 texts(site.queries));
  }

 private:
  std::optional<ImageGrid> grid() const {
    const bool of_image = setup_.heads.site().keys == &Batch::image;
    return of_image ? setup_.run.model->image_grid() : std::nullopt;
  }
  LayerMap map_of(const AnalysisBatch& batch, int64_t l) const {
    const auto& heads = setup_.heads.layer(l);
    const auto& site = setup_.heads.site();
    const auto found = batch.probe.layer_patterns().find({site.name, l, 0});
    if (heads.traits().map != HeadMap::kTokens || found == batch.probe.layer_patterns().end())
      return {};
    const auto& [p, mask] = found->second;
    std::vector<int64_t> rows;
    LayerMap map;
    const auto ids = heads.head_ids();
    const auto alive = heads.alive();
    for (size_t n = 0; n < ids.size(); ++n)
      if (alive[ids[n]]) rows.push_back(static_cast<int64_t>(n)), map.heads.push_back(ids[n]);
    const bool all = rows.size() == ids.size();
    const auto index = at::tensor(rows, at::kLong).to(p.device());
    const auto own = [&](const Tensor& t) { return all ? t : t.index_select(1, index); };
    map.a = own(p);
    auto& context = map.context;
    context.allowed = allowed_keys(mask, p.size(2), p.size(3), p.device());
    if (context.allowed.defined()) context.allowed = own(context.allowed.expand(p.sizes()));
    context.query_length = mask.query_length, context.key_length = mask.key_length;
    context.causal = mask.causal;
    context.cross = site.keys != site.queries;
    context.tokens = batch.data.tokens_of(site.keys);
    context.grid = grid();
    if (!classes_.empty())
      context.classes = at::tensor(classes_, at::kByte).index({context.tokens});
    if (ranks_.defined()) context.frequency_rank = ranks_.index({context.tokens});
    return map;
  }

  std::vector<uint8_t> classes_;
  Tensor ranks_;
  KeptMaps kept_;
  MapStatistics statistics_;
};

}  // namespace

std::unique_ptr<HeadMeasurement> map_measurement(const AnalysisSetup& setup) {
  return std::make_unique<Maps>(setup);
}

void KeptMaps::add(const std::vector<LayerMap>& layers, const Tensor& keys, const Tensor& queries) {
  const auto some =
      std::ranges::find_if(layers, [](const LayerMap& map) { return map.a.defined(); });
  if (some == layers.end()) return;
  for (int64_t b = 0; b < some->a.size(0) && std::ssize(maps_) < most_; ++b) {
    auto& example = maps_.emplace_back();
    const Tensor* a = nullptr;
    for (const auto& map : layers) {
      example.push_back(map.a.defined() ? example_of(map, b) : LayerMap{});
      if (map.a.defined()) example.back().a = example.back().a.clone();  // not the whole batch
    }
    for (const auto& map : example)
      if (map.a.defined()) a = &map.a;  // [1,H,t,s]
    const auto tokens = [&](const Tensor& ids, int64_t length) {
      return ids.defined() ? ids[b].narrow(0, 0, length).to(at::kCPU) : Tensor();
    };
    keys_.push_back(tokens(keys, a->size(3)));
    queries_.push_back(tokens(queries, a->size(2)));
  }
}

void KeptMaps::finish(LabelledGroup& to, int64_t layers, int64_t heads,
                      const std::vector<std::string>& key_texts,
                      const std::vector<std::string>& query_texts) const {
  if (maps_.empty()) return;
  const auto E = std::ssize(maps_);
  int64_t T = 0, S = 0;
  bool cross = false;
  for (const auto& example : maps_)
    for (const auto& map : example)
      if (map.a.defined())
        T = std::max(T, map.a.size(2)), S = std::max(S, map.a.size(3)), cross = map.context.cross;
  auto weights = at::full({E, layers, heads, T, S}, kNaN, at::kDouble);
  auto rolled = at::full({E, layers, T, S}, kNaN, at::kDouble);
  for (int64_t e = 0; e < E; ++e) {
    const auto& example = maps_[e];
    for (int64_t l = 0; l < layers; ++l) {
      const auto& a = example[l].a;
      for (size_t n = 0; a.defined() && n < example[l].heads.size(); ++n)
        weights[e][l][example[l].heads[n]]
            .narrow(0, 0, a.size(2))
            .narrow(1, 0, a.size(3))
            .copy_(a[0][static_cast<int64_t>(n)]);
    }
    if (!cross)
      if (const auto all = rollout(example); all.defined())  // [L,1,t,t]
        rolled[e].narrow(1, 0, all.size(2)).narrow(2, 0, all.size(3)).copy_(all.select(1, 0));
  }
  const auto axis = [&](const char* name, const char* what, int64_t size) {
    add_axis(to, {{name, "1", what, "counted from 0"}, size});
  };
  axis("example", "example, the first of the split or file", E);
  axis("query", "place of the query", T);
  axis("key", "place of the key", S);
  const auto add = [&](const char* name, const char* what, const char* formula,
                       std::vector<std::string> dims, const Tensor& values) {
    add_array(to, {name, "1", what, formula}, std::move(dims), values);
  };
  add("attention", "attention weights", "a after the softmax, before heads are mixed; NaN: padding",
      {"example", "layer", "head", "query", "key"}, weights);
  if (!cross)
    add("rollout", "attention rollout; Abnar and Zuidema 2020",
        "A_l = (mean_h a + I)/2; R_l = A_l R_{l-1}, R_0 = A_0",
        {"example", "layer", "query", "key"}, rolled);
  const auto add_tokens = [&](const char* name, const char* what, const char* axis,
                              const std::vector<Tensor>& ids, int64_t size) {
    if (!ids.front().defined()) return;
    auto token = at::full({E, size}, kNaN, at::kDouble);
    for (int64_t e = 0; e < E; ++e) token[e].narrow(0, 0, ids[e].size(0)).copy_(ids[e]);
    add(name, what, "index in the vocabulary; NaN: padding", {"example", axis}, token);
  };
  add_tokens("token", "tokens of the keys", "key", keys_, S);
  add_tokens("query_token", "tokens of the queries", "query", queries_, T);
  const auto add_texts = [&](const char* name, const char* what, const char* axis,
                             const std::vector<Tensor>& ids, int64_t size,
                             const std::vector<std::string>& known) {
    if (!ids.front().defined() || known.empty()) return;
    LabelledArray array{{name, "1", what, "empty: padding"}, {"example", axis}, {}};
    for (const auto& example : ids)
      for (int64_t n = 0; n < size; ++n)
        array.texts.push_back(
            n < example.size(0) ? readable_text(known.at(example[n].item<int64_t>())) : "");
    to.arrays.push_back(std::move(array));
  };
  add_texts("key_text", "texts of the keys", "key", keys_, S, key_texts);
  add_texts("query_text", "texts of the queries", "query",
            queries_.front().defined() ? queries_ : keys_, T, query_texts);
}

}  // namespace headlab
