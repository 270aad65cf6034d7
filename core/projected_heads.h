// Heads with the four plain projections of multi-head attention, which most kinds keep: what such
// kinds share of options, parameters, initialisation, and cached keys and values.
//
// B batch, T queries, S keys, D d_model, H heads, Hkv key/value heads, M maps of a head, d width of
// a query and key, e width of a value.
#pragma once

#include "core/attention/layers.h"
#include "core/head_kinds.h"

namespace headlab {

// How the projections are cut, and which biases and norms they have.
struct Projections {
  bool qkv_bias = false, o_bias = false;
  bool qk_norm = false;        // RMS norm of each query and key, before rope
  bool centred_norm = false;   // of x - mean(x) instead: a layer norm without bias
  bool norm_per_head = false;  // a weight [H,d] instead of one [d] for all
  bool norm_bias = false;      // and a bias of that size
  double qk_norm_eps = 1e-6;
  int64_t maps = 1;                                    // queries of a head: each makes a map
  std::optional<int64_t> key_maps = {};                // keys of a head; default: as many
  std::optional<int64_t> qk_width = {}, v_width = {};  // d and e; default: head_dim
  std::optional<double> scale = {};                    // on q k^T; default d^-0.5
};

// Options `bias`, `qkv_bias`, `o_bias`.
struct BiasOptions : HeadOptions {
  bool bias = false;
  std::optional<bool> qkv_bias, o_bias;

  void visit(Fields& f) override;
  HeadTraits traits() const override { return {.grouped = true}; }
  std::optional<InitDifferences> init_differences() const override { return InitDifferences(); }
  virtual Projections projections() const;
};

// The options of mha, which kinds that change what lies between the projections take over.
struct MhaOptions : BiasOptions {
  bool qk_norm = false;
  double qk_norm_eps = 1e-6;
  std::optional<double> scale;  // on q k^T; default head_dim^-0.5

  void visit(Fields& f) override;
  Projections projections() const override;
  // What turns scores into weights; null: the softmax.
  virtual const MapOptions* map_options() const { return nullptr; }
};

// Traits of kinds that take q, k, v from QkvHeads, and whose output() is given the values.
inline HeadTraits plain(HeadTraits traits) {
  traits.plain_projections = traits.own_values = true;
  return traits;
}

// The options of mha, and its map.
struct MappedOptions : MhaOptions {
  MapBlock map;

  void visit(Fields& f) override {
    MhaOptions::visit(f);
    f("map", map, kMapHelp);
  }
  HeadTraits traits() const override { return plain(map.options().limit(MhaOptions::traits())); }
  const MapOptions* map_options() const override { return &map.options(); }
};

// Multi-head attention with one map, whose options stand beside mha's.
template <class OwnMap, class Others = MhaOptions>
struct FixedMapOptions : Others {
  OwnMap map;

  void visit(Fields& f) override {
    Others::visit(f);
    map.visit(f);
  }
  HeadTraits traits() const override { return plain(map.limit(Others::traits())); }
  const MapOptions* map_options() const override { return &map; }
};

class QkvHeads : public AttentionHeads {
 public:
  std::optional<HeadMatrices> matrices() const override;
  int64_t value_width() const override { return v_width_; }

 protected:
  // What flops() asks of the projections q, k, v, o and of the maps alone, for kinds whose other
  // costs do not follow from what they register.
  double projected_flops(int64_t T, int64_t S, double pairs) const;
  // Initialised as the shape says; norms 1.
  QkvHeads(const HeadShape& shape, const HeadTraits& traits, const Projections& projections);

  // Normed and rotated, the maps of a head side by side: [B,H*M,T,d].
  Tensor queries(const Tensor& x, const HeadCall& call);
  // Of the memory, or of x and all that the cache has kept: normed, rotated: [B,Hkv*M,S,d].
  Tensor keys(const Tensor& x, const HeadCall& call);
  Tensor values(const Tensor& x, const HeadCall& call);  // likewise [B,Hkv,S,e]
  double scale() const { return scale_; }

  Linear q_{nullptr}, k_{nullptr}, v_{nullptr};

 private:
  Tensor norm(RmsNorm& norm, const Tensor& x) const;
  double flops_of_pair() const override;

  RmsNorm q_norm_{nullptr}, k_norm_{nullptr};
  bool centred_norm_;
  int64_t maps_, key_maps_, qk_width_, v_width_;
  double scale_;
};

// Such heads with the options of a kind, which say the rest.
template <class KindOptions>
class ProjectedHeads : public QkvHeads {
 public:
  using Options = KindOptions;

  ProjectedHeads(const HeadShape& shape, const Options& options)
      : QkvHeads(shape, options.traits(), options.projections()), options_(options) {
    if constexpr (requires { options.map_options(); })
      if (const auto* map = options.map_options()) set_map(*map);
  }

 protected:
  const Options options_;
};

// Multi-head attention as it is but for its map.
template <class KindOptions>
class MapHeads : public ProjectedHeads<KindOptions> {
 public:
  using ProjectedHeads<KindOptions>::ProjectedHeads;

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto q = this->queries(x, call);                          // [B,H,T,d]
    const auto k = this->keys(x, call), v = this->values(x, call);  // [B,Hkv,S,d]
    const auto heads = attend(q, k, v, call, this->scale());        // [B,H,T,d]
    return {.y = this->output(heads, v, call)};                     // [B,T,D]
  }
};

}  // namespace headlab
