// Attention maps exported from elsewhere: a safetensors file, checked, and its head statistics.
//
// L layers, B examples, H heads, T queries, S keys. Tensors:
//   in.attention [L,B,H,T,S]  after the softmax, any floating type; what lies beyond a length does
//                             not count
//   in.length [B], in.key_length [B]    default: T, S. With key_length, or S other than T, the keys
//                                       are another sequence: nothing that compares places exists
//   in.tokens, in.class, in.frequency_rank [B,S]    of the keys; class: 0 word, 1 cls, 2 sep, 3
//                                       punctuation; rank: 0 the most frequent
// Metadata: causal "true" or "false" (default: causal where no query attends to a later key); top_k
// "5"; grid "[rows, columns]", patch (side, default 1), cls_tokens
// (default 0): the tokens are patches of images.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "experiments/analysis/maps/map_statistics.h"
#include "experiments/models/named_tensors.h"

namespace headlab {

struct MapFile {
  std::vector<LayerMap> layers;  // [L], of all heads
  int64_t heads = 0, examples = 0, top_k = 5;
  std::string causal_from;  // who decided: "option", "metadata" or "weights"

  // `name` is for messages; `causal`: whether they are, over what the file says. DataError for what
  // is missing, has another shape, or is no attention: the weights of a row that counts are not
  // negative and sum to 1 over the keys that it may attend to, within the precision of the type
  // that they were stored in.
  MapFile(const std::string& name, const NamedTensors& tensors,
          const std::map<std::string, std::string>& metadata,
          std::optional<bool> causal = std::nullopt);

  const MapContext& context() const { return layers.front().context; }
  // Names of the tables' statistics that this context allows. Between heads: js and js_clark are of
  // all layers, js [L,H,H] of the streamed table is not among them.
  std::vector<std::string> statistics() const;
  // Those of `names`: row-major, [L,H], [L,H,H] or [L*H,L*H] by map_statistic_table().
  std::map<std::string, std::vector<double>> values(const MapStatisticsOptions& options) const;
};

}  // namespace headlab
