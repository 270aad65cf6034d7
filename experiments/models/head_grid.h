// The heads of a model by place: layer and head, counted as the model was built, so that a pruned
// model's heads keep their numbers. Written "layer:head".
#pragma once

#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "experiments/data/source.h"
#include "experiments/models/model.h"

namespace headlab {

struct HeadId {
  int64_t layer = 0, head = 0;
  friend bool operator==(const HeadId&, const HeadId&) = default;
  friend bool operator<(const HeadId& a, const HeadId& b) {
    return a.layer != b.layer ? a.layer < b.layer : a.head < b.head;
  }
};
std::string to_text(HeadId id);
std::ostream& operator<<(std::ostream& out, HeadId id);
std::vector<std::string> to_texts(const std::vector<HeadId>& ids);

// The attention layers that heads are counted in: those of the site "self". ConfigError for a model
// that has other sites.
std::vector<std::shared_ptr<AttentionHeads>*> attention_layers(Model& model);

// bool [L,H], H of the layer with most heads; false where a head is pruned or does not exist.
Tensor alive_heads(Model& model);
int64_t built_heads(Model& model);  // how many it was built with, pruned ones included
// The heads for which `grid` [L,H] holds, in order.
std::vector<HeadId> heads_where(const Tensor& grid);

// "2:0", "1:0,3", each word a layer and some of its heads -> sorted, each once. ConfigError naming
// the word, also for a head that the model was not built with.
std::vector<HeadId> parse_heads(const std::vector<std::string>& words, Model& model);

// The model goes on as if these heads, and those that were gone before, had never been there.
void remove_heads(Model& model, const std::vector<HeadId>& heads);
// Every layer holds its alive heads only.
void slice_heads(Model& model);

// Values of each layer's own heads [H of the layer] -> [L,H] in original heads, NaN where none is.
Tensor head_grid(Model& model, const std::vector<Tensor>& layers);

}  // namespace headlab
