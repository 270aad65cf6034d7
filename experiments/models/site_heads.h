// The heads of a model by place: site, layer and head, counted as the model was built, so that a
// pruned model's heads keep their numbers. Written "layer:head", or "cross/1:0" where the site is
// not the usual one, "self".
#pragma once

#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "experiments/models/model.h"

namespace headlab {

struct HeadId {
  int64_t layer = 0, head = 0;
  std::string site = kSelfSite;
  friend bool operator==(const HeadId&, const HeadId&) = default;
  friend bool operator<(const HeadId& a, const HeadId& b);  // by site, layer, head
};
std::string to_text(const HeadId& id);
std::ostream& operator<<(std::ostream& out, const HeadId& id);
std::vector<std::string> to_texts(const std::vector<HeadId>& ids);

// The heads that are alive, as rows among those that the layer has (head_ids()).
std::vector<int64_t> alive_rows(const AttentionHeads& layer);

// One site as a grid [L,H], H the heads of the layer with most: what the layers are asked for and
// what is found out about them goes through it. Its model keeps its layers in place meanwhile.
class SiteHeads {
 public:
  explicit SiteHeads(Site site);

  const Site& site() const { return site_; }
  const std::string& name() const { return site_.name; }
  int64_t layers() const { return std::ssize(site_.layers); }
  int64_t heads() const { return heads_; }
  AttentionHeads& layer(int64_t l) const { return **site_.layers.at(l); }
  int64_t built() const;  // heads of all layers, pruned ones included

  // bool [L,H]; false where a head is pruned or does not exist.
  Tensor alive() const;
  Tensor no_values() const;  // float64 [L,H] of NaN

  // Float64 values of each layer's alive heads, in order; undefined for a layer without any values.
  // NaN where there is no head, or it is not alive. [h] -> [L,H].
  Tensor by_head(const std::vector<Tensor>& values) const;
  // Of the heads that each layer has (head_ids()), masked ones included: these are left out.
  Tensor by_own_head(const std::vector<Tensor>& values) const;
  // [h,n], n may differ -> [L,H,n of the widest].
  Tensor rows_by_head(const std::vector<Tensor>& values) const;
  // [h,h] -> [L,H,H].
  Tensor within_layers(const std::vector<Tensor>& values) const;
  // [N,N] of all alive heads, layer behind layer -> [L,H,L,H].
  Tensor between_layers(const Tensor& values) const;

 private:
  // Of the heads that are alive now.
  std::vector<int64_t> alive_counts() const;  // [L]
  Tensor alive_places() const;                // [N] in the flat grid

  Site site_;
  int64_t heads_ = 0;
};

std::vector<SiteHeads> site_heads(Model& model);
// ConfigError that names the sites there are.
SiteHeads heads_at(Model& model, const std::string& site);

// Of every site one [L,H].
using SiteGrids = std::map<std::string, Tensor>;
SiteGrids alive_heads(Model& model);
int64_t built_heads(Model& model);
int64_t alive_count(Model& model);
// The heads for which a grid holds, in order.
std::vector<HeadId> heads_where(const SiteGrids& grids);

// "2:0", "1:0,3", "cross/0:1", each word a layer and some of its heads -> sorted, each once.
// Without a site it is the model's only one. ConfigError naming the word, also for a head that the
// model was not built with.
std::vector<HeadId> parse_heads(const std::vector<std::string>& words, Model& model);

// The model goes on as if these heads, and those that were gone before, had never been there.
void remove_heads(Model& model, const std::vector<HeadId>& heads);
// Every layer holds its alive heads only.
void slice_heads(Model& model);

}  // namespace headlab
