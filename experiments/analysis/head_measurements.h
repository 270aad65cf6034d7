// What `headlab analyze` measures of the heads of one site.
#pragma once

#include "experiments/analysis/analysis.h"
#include "experiments/analysis/maps/map_file.h"

namespace headlab {

// What the probe streams, and what the kinds of heads report themselves.
std::unique_ptr<HeadMeasurement> streamed_measurement(const AnalysisSetup& setup);
// What needs the maps: one batch of them is held at a time.
std::unique_ptr<HeadMeasurement> map_measurement(const AnalysisSetup& setup);
// Gradients at gates of 1, in a pass of its own.
std::unique_ptr<HeadMeasurement> importance_measurement(const AnalysisSetup& setup);

// What heads say, and what their weights do.
std::unique_ptr<HeadMeasurement> outputs_measurement(const AnalysisSetup& setup);
std::unique_ptr<HeadMeasurement> circuits_measurement(const AnalysisSetup& setup);
// Induction and duplicate heads, on repeated random tokens.
std::unique_ptr<HeadMeasurement> repeated_tokens_measurement(const AnalysisSetup& setup);
// Syntactic heads, on the sentences of options.treebank.
std::unique_ptr<HeadMeasurement> syntax_measurement(const AnalysisSetup& setup);

// Statistics of the tables by name, as arrays in the tables' order; js further as `similarity` and
// `head_map`.
void add_statistics(LabelledGroup& to, const std::map<std::string, std::vector<double>>& values,
                    int64_t layers, int64_t heads);

// Maps of a few examples [E], as they are: the weights that the statistics are of, and rollout.
class KeptMaps {
 public:
  explicit KeptMaps(int64_t most) : most_(most) {}
  // Keeps what is still missing. The tokens of the keys [B,S] may be undefined, and those of the
  // queries [B,T] where they stand in the same text.
  void add(const std::vector<LayerMap>& layers, const Tensor& keys, const Tensor& queries);
  static std::vector<std::string> names() {
    return {"attention", "rollout", "token", "query_token", "key_text", "query_text"};
  }
  // The texts of tokens, by number, may be empty; those of queries, where they stand in the same
  // text.
  void finish(LabelledGroup& to, int64_t layers, int64_t heads,
              const std::vector<std::string>& key_texts = {},
              const std::vector<std::string>& query_texts = {}) const;

 private:
  int64_t most_;
  std::vector<std::vector<LayerMap>> maps_;  // [E][L], of one example each
  std::vector<Tensor> keys_, queries_;       // [E] of [S], [T]: tokens without padding
};

}  // namespace headlab
