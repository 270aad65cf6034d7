// Heads with the four plain projections of multi-head attention, which most kinds keep: what such
// kinds share of options, parameters, initialisation, cached keys and values, and slicing.
//
// B batch, T queries, S keys, D d_model, H heads, Hkv key/value heads, d head_dim.
#pragma once

#include "core/attention/norm.h"
#include "core/heads.h"

namespace headlab {

// Which biases and norms the projections have.
struct Projections {
  bool qkv_bias = false, o_bias = false;
  bool qk_norm = false;       // RMS norm of each query and key, before rope
  bool centred_norm = false;  // of x - mean(x) instead: a layer norm without bias
  double qk_norm_eps = 1e-6;
};

// Options `bias`, `qkv_bias`, `o_bias`.
struct BiasOptions : HeadOptions {
  bool bias = false;
  std::optional<bool> qkv_bias, o_bias;

  void visit(Fields& f) override;
  virtual Projections projections() const;
};

// The options of mha, which kinds that change what lies between the projections take over.
struct MhaOptions : BiasOptions {
  bool qk_norm = false;
  double qk_norm_eps = 1e-6;
  std::optional<double> scale;  // on q k^T; default head_dim^-0.5

  void visit(Fields& f) override;
  Projections projections() const override;
};

class ProjectedHeads : public AttentionHeads {
 public:
  std::optional<HeadMatrices> matrices() const override;

 protected:
  // Initialised as GPT-2: N(0, 0.02), o by residual_std, biases 0, norms 1.
  ProjectedHeads(const HeadShape& shape, const HeadTraits& traits, const Projections& projections);

  Tensor queries(const Tensor& x, const HeadContext& ctx);  // normed, rotated: [B,H,T,d]
  // Of the memory, or of x and all that the cache remembers: normed, rotated: [B,Hkv,S,d].
  Tensor keys(const Tensor& x, const HeadContext& ctx);
  Tensor values(const Tensor& x, const HeadContext& ctx);  // likewise [B,Hkv,S,d]
  // Gates, joins and projects what the heads say: [B,H,T,e] -> [B,T,D].
  Tensor output(const Tensor& heads, const HeadContext& ctx);
  double scale(const MhaOptions& options) const;

  // A layer of the kept heads with the projections' rows and columns copied; a kind copies the
  // rest.
  template <class Heads>
  std::shared_ptr<Heads> slice_projections(const typename Heads::Options& options,
                                           const Kept& kept) const {
    auto sliced = std::make_shared<Heads>(kept.shape, options);
    sliced->copy_projections(*this, kept);
    return sliced;
  }

  Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, o_{nullptr};

 private:
  void copy_projections(const ProjectedHeads& from, const Kept& kept);
  Tensor norm(RmsNorm& norm, const Tensor& x) const;

  RmsNorm q_norm_{nullptr}, k_norm_{nullptr};
  bool centred_norm_;
};

}  // namespace headlab
