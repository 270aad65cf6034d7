// Analysis on inputs made for the purpose: repeated random tokens, and the sentences of a treebank.
#include <algorithm>

#include "experiments/analysis/head_measurements.h"
#include "experiments/analysis/repeated_tokens.h"
#include "experiments/analysis/syntax_scores.h"

namespace headlab {
namespace {

// What a made input has: no source, no image.
bool reads_ids_alone(Model& model) {
  const auto sites = model.sites();
  return std::all_of(sites.begin(), sites.end(), [](const Site& s) { return s.within_ids(); });
}

class Repeated : public HeadMeasurement {
 public:
  explicit Repeated(const AnalysisSetup& setup) : setup_(setup) {}

  bool of_examples() const override { return false; }

  std::vector<std::string> names() const override {
    constexpr int64_t kShortest = 4;  // two tokens, twice
    if (!reads_ids_alone(*setup_.run.model) || !has_token_map(setup_) ||
        setup_.run.model->context() < kShortest)
      return {};
    return {"induction_repeated", "duplicate_token_repeated"};
  }

  void finish(LabelledGroup& to) override {
    const RepeatedTokensOptions options;
    const auto& data = *setup_.run.data;
    auto& model = *setup_.run.model;
    const auto tokens =
        repeated_tokens(data.vocabulary(), model.context(), data.token_classes(), options);
    const auto arrays = repeated_token_arrays(
        repeated_token_scores(model, setup_.heads, tokens, setup_.compute), tokens, options);
    to.arrays.insert(to.arrays.end(), arrays.begin(), arrays.end());
  }

 private:
  AnalysisSetup setup_;
};

class Syntax : public HeadMeasurement {
 public:
  explicit Syntax(const AnalysisSetup& setup) : setup_(setup) {}

  bool of_examples() const override { return false; }

  std::vector<std::string> names() const override {
    if (!reads_ids_alone(*setup_.run.model)) return {};
    return {"accuracy",       "accuracy_head_row", "baseline",      "baseline_offset",
            "baseline_place", "relation_count",    "best_relation", "best_direction",
            "best_accuracy",  "best_gain"};
  }

  // What is wrong with the treebank is said before the model works.
  void start(const std::vector<std::string>&, HeadProbe&) override {
    treebank_ = encode_treebank(read_treebank(setup_.options.treebank), *setup_.run.data,
                                setup_.run.model->context());
  }

  void finish(LabelledGroup& to) override {
    if (const auto scores =
            score_syntax(*setup_.run.model, setup_.heads, treebank_, {}, setup_.compute))
      add_syntax(to, *scores);
  }

 private:
  AnalysisSetup setup_;
  EncodedTreebank treebank_;
};

}  // namespace

std::unique_ptr<HeadMeasurement> repeated_tokens_measurement(const AnalysisSetup& setup) {
  return std::make_unique<Repeated>(setup);
}

std::unique_ptr<HeadMeasurement> syntax_measurement(const AnalysisSetup& setup) {
  return std::make_unique<Syntax>(setup);
}

}  // namespace headlab
