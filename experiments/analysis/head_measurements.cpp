#include "experiments/analysis/head_measurements.h"

#include <algorithm>
#include <cmath>

#include "core/torch.h"
#include "experiments/analysis/maps/multidimensional_scaling.h"

namespace headlab {
namespace {

class Streamed : public HeadMeasurement {
 public:
  explicit Streamed(const AnalysisSetup& setup)
      : HeadMeasurement(setup), classes_(setup.token_classes()) {
    const bool has_classes = !classes_.empty();
    for (const auto& s : statistic_table()) {
      const bool exists = has_classes || s.needs != Needs::kClasses;
      if (s.per == Per::kHead && exists) table_.push_back(s);
    }
    for (int64_t l = 0; l < setup.heads.layers(); ++l)
      for (const auto& s : setup.heads.layer(l).statistics())
        if ((s.per == Per::kHead || s.per == Per::kLayer) &&  // only these have an array
            std::ranges::find(own_, std::string_view(s.name), &Statistic::name) == own_.end())
          own_.push_back(s);
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto* list : {&table_, &own_})
      for (const auto& s : *list) names.push_back(s.name);
    return names;
  }

  void start(const std::vector<std::string>&, HeadProbe& probe) override {
    probe.statistics = true;
    probe.matches = true;
    probe.divergence = false;  // maps give it between all heads
    if (!classes_.empty()) probe.class_of_token = at::tensor(classes_, at::kByte);
    probe_ = &probe;
  }

  void finish(LabelledGroup& to) override {
    std::vector<std::map<std::string, std::vector<double>>> layers;
    for (int64_t l = 0; l < setup_.heads.layers(); ++l) {
      const MapKey key(setup_.heads.name(), l, 0);
      layers.push_back(probe_->sums().count(key) ? probe_->values(key)
                                                 : std::map<std::string, std::vector<double>>());
    }
    for (const auto& s : table_)
      add_statistic(to, s, layers, /*of_tokens=*/s.name != std::string("output_norm"));
    for (const auto& s : own_) add_statistic(to, s, layers, /*of_tokens=*/false);
  }

 private:
  // `of_tokens`: does not exist in layers whose weights are over anything else.
  void add_statistic(LabelledGroup& to, const Statistic& s,
                     const std::vector<std::map<std::string, std::vector<double>>>& layers,
                     bool of_tokens) const {
    std::vector<double> by_layer;
    // What a probe counts is in original heads already.
    auto by_head = setup_.heads.no_values();
    for (int64_t l = 0; l < setup_.heads.layers(); ++l) {
      const auto& heads = setup_.heads.layer(l);
      const auto found = layers[l].find(s.name);
      const bool exists =
          found != layers[l].end() && (!of_tokens || heads.traits().map == HeadMap::kTokens);
      by_layer.push_back(exists ? found->second.front() : kNaN);
      if (exists && s.per != Per::kLayer)
        by_head[l].narrow(0, 0, heads.heads()).copy_(at::tensor(found->second, at::kDouble));
    }
    if (s.per == Per::kLayer)
      to.arrays.push_back({variable_of(s), {"layer"}, by_layer});
    else
      add_array(to, variable_of(s), {"layer", "head"}, by_head);
  }

  std::vector<uint8_t> classes_;
  std::vector<Statistic> table_, own_;
  const HeadProbe* probe_ = nullptr;
};

class Importance : public HeadMeasurement {
 public:
  using HeadMeasurement::HeadMeasurement;

  std::vector<std::string> names() const override { return importance_arrays(); }

  void finish(LabelledGroup& to) override {
    auto& measured = *setup_.importance;
    if (!measured)
      measured = measure_importance(*setup_.run.model, setup_.sample(), setup_.compute);
    const auto add = [&](const std::string& name, const char* units, const char* what,
                         const char* formula, const SiteGrids& values) {
      add_array(to, {name, units, what, formula}, {"layer", "head"},
                values.at(setup_.heads.name()));
    };
    const auto& raw = measured->raw;
    const auto add_paper = [&](const std::string& name, const char* units, const char* what,
                               const char* formula, const std::string& norm) {
      add(name, units, what, formula, normalized(raw.at("paper"), norm));
      add(name + "_interval", units, "half the 95 % interval of the importance",
          "of t, over the examples, with the norm taken as it is",
          over_norms_of(raw.at("paper"), measured->paper_interval, norm));
    };
    add_paper("importance", "1", "importance of the head within its layer",
              "I / (norm2(I of the layer) + 1e-20), I = importance_paper", "layer");
    add_paper("importance_global", "1", "importance of the head within the model",
              "I / (norm2(I of all layers) + 1e-20), I = importance_paper", "global");
    add_paper(
        "importance_paper", "nat", "how much the loss of an example moves with the head's gate",
        "mean over examples of |dL_n/dxi|, L_n summed over the example, at gates xi of 1", "none");
    add("importance_per_position", "nat", "importance by position",
        "mean over positions of |<o, dL/do>|", raw.at("per_position"));
    add("importance_batch", "nat", "importance by batch",
        "sum over batches of |sum of <o, dL/do>| / positions; depends on the batch size",
        raw.at("batch"));
    add("activation", "1", "size of what the head says",
        "mean over positions of the norm of what it puts into the output projection",
        measured->activation);
  }
};

// Points of the heads in a plane, from the divergence itself as Clark et al. 2019 do.
void add_head_map(LabelledGroup& to, const std::vector<double>& js, int64_t L, int64_t H) {
  constexpr int64_t kComponents = 2;
  add_axis(to, {{"coordinate", "1", "axis of the plane of heads", "in falling order of spread"},
                kComponents});
  const auto scaled = scale_points(at::tensor(js, at::kDouble).view({L * H, L * H}), kComponents);
  add_array(to,
            {"head_map", "nat", "heads in a plane: near ones attend alike",
             "classical multidimensional scaling of js, not of its root; of each component the "
             "entry largest in size is positive"},
            {"layer", "head", "coordinate"}, scaled.points)
      .attributes["share"] = scaled.share;
}

std::vector<std::string> dims_of(const std::string& name) {
  for (const auto& s : map_statistic_table()) {
    if (s.name != name || s.dims == MapDims::kHead) continue;
    if (s.dims == MapDims::kHeadsOfLayer) return {"layer", "head", "head2"};
    return {"layer", "head", "layer2", "head2"};
  }
  return {"layer", "head"};
}

}  // namespace

std::unique_ptr<HeadMeasurement> streamed_measurement(const AnalysisSetup& setup) {
  return std::make_unique<Streamed>(setup);
}

std::unique_ptr<HeadMeasurement> importance_measurement(const AnalysisSetup& setup) {
  return std::make_unique<Importance>(setup);
}

void add_statistics(LabelledGroup& to, const std::map<std::string, std::vector<double>>& values,
                    int64_t layers, int64_t heads) {
  const auto add = [&](const Statistic& s) {
    const auto found = values.find(s.name);
    if (found == values.end() || find_array(to, s.name)) return;
    const auto dims = dims_of(s.name);
    add_head_axes(to, dims, layers, heads);
    to.arrays.push_back({variable_of(s), dims, found->second});
  };
  for (const auto& s : map_statistic_table())
    if (s.name == std::string("js")) add(s);  // not the streamed table's, which is by layer
  for (const auto& s : statistic_table()) add(s);
  for (const auto& s : map_statistic_table()) add(s);
  const auto js = values.find("js");
  if (js == values.end()) return;
  LabelledArray similarity{
      {"similarity", "1", "how alike two heads attend", "1 - js / ln 2"}, dims_of("js"), {}};
  for (double divergence : js->second) similarity.values.push_back(1 - divergence / std::log(2.0));
  to.arrays.push_back(std::move(similarity));
  add_head_map(to, js->second, layers, heads);
}

}  // namespace headlab
