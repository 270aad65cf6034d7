// Analysis of what heads write into the residual stream: their outputs, and the circuits of their
// weights.
#include <algorithm>

#include "experiments/analysis/circuit_arrays.h"
#include "experiments/analysis/head_measurements.h"
#include "experiments/analysis/output_analysis.h"

namespace headlab {
namespace {

// Adds what the group does not have yet.
void merge(LabelledGroup& to, LabelledGroup more) {
  for (auto& axis : more.axes) add_axis(to, std::move(axis));
  for (auto& array : more.arrays)
    if (!find_array(to, array.about.name)) to.arrays.push_back(std::move(array));
}

class Outputs : public HeadMeasurement {
 public:
  explicit Outputs(const AnalysisSetup& setup) : setup_(setup) {}

  std::vector<std::string> names() const override {
    return {"contribution_norm", "output_cosine", "output_disagreement", "residual_ratio", "cka"};
  }
  // Sums between all heads' features, of a large model gigabytes.
  std::vector<std::string> on_request() const override {
    int64_t features = 0;
    for (int64_t l = 0; l < setup_.heads.layers(); ++l)
      features += setup_.heads.layer(l).heads() * setup_.heads.layer(l).value_width();
    constexpr int64_t kMost = 8192;  // a quarter of a gigabyte
    return features > kMost ? std::vector<std::string>{"cka"} : std::vector<std::string>{};
  }

  void start(const std::vector<std::string>& wanted, HeadProbe& probe) override {
    probe.head_outputs = true;
    const bool likeness = std::find(wanted.begin(), wanted.end(), "cka") != wanted.end();
    sums_.emplace(setup_.heads, OutputSums::Options{.likeness = likeness});
  }
  void add(const AnalysisBatch& batch) override {
    const auto& site = setup_.heads.site();
    sums_->add(batch.probe, batch.hidden.at(site.stack), batch.data.*site.query_length);
  }
  void finish(LabelledGroup& to) override { merge(to, sums_->results()); }

 private:
  AnalysisSetup setup_;
  std::optional<OutputAnalysis> sums_;
};

class Circuits : public HeadMeasurement {
 public:
  explicit Circuits(const AnalysisSetup& setup) : setup_(setup) {}

  bool of_examples() const override { return false; }

  std::vector<std::string> names() const override {
    return {"qk_singular_values", "qk_rank_95",    "qk_layer_singular_values",
            "qk_layer_rank_95",   "ov_copying",    "ov_copying_full",
            "composition_q",      "composition_k", "composition_v"};
  }
  void finish(LabelledGroup& to) override {
    const auto& model = *setup_.run.model;
    const bool between = setup_.heads.site().within_ids();  // what is read is what is written
    merge(to, between ? circuits(setup_.heads, model.embedding(), model.unembedding())
                      : circuits(setup_.heads));
  }

 private:
  AnalysisSetup setup_;
};

}  // namespace

std::unique_ptr<HeadMeasurement> outputs_measurement(const AnalysisSetup& setup) {
  return std::make_unique<Outputs>(setup);
}

std::unique_ptr<HeadMeasurement> circuits_measurement(const AnalysisSetup& setup) {
  return std::make_unique<Circuits>(setup);
}

}  // namespace headlab
