// Sigmoid attention: each weight depends on its own query and key alone.
//
// Ramapuram et al., "Theory, Analysis, and Best Practices for Sigmoid Self-Attention", arXiv
// 2409.04431, equation (3) and section 3; apple/ml-sigmoid-attention:
//   A_ij = sigmoid(z_ij + offset),   offset = -ln S, S the keys of the example
// so that rows sum to about 1 at first. `normalize` divides row i by sqrt(i + 1) or i + 1.
#include <cmath>

#include "core/config/alternatives.h"
#include "core/config/derived_defaults.h"
#include "core/projected_heads.h"

namespace headlab {
namespace {

struct SigmoidMap : WeightMapOptions {
  WordOrNumber offset{{"length"}};
  std::string normalize = "none";

  void visit(Fields& f) override {
    f("offset", offset,
      "added to the scores: length = -ln of the number of keys within the length; decoding needs a "
      "number, -ln of the training context");
    f("normalize", normalize, "divides row i by sqrt(i + 1), or by its length i + 1",
      one_of({"none", "sqrt", "length"}));
  }
  WeightMap map() const override {
    using Divisor = WeightMap::Divisor;
    return {.kind = WeightMap::Kind::kSigmoid,
            .offset = offset.number(),
            .divisor = normalize == "none"   ? Divisor::kNone
                       : normalize == "sqrt" ? Divisor::kSqrt
                                             : Divisor::kLength};
  }
  bool decodes() const override { return offset.number().has_value(); }
};

// Their norm of queries and keys is a layer norm, and has a bias.
struct NormedOptions : BiasOptions, DerivedDefaults<HeadShape> {
  bool qk_norm = false;
  std::string qk_norm_kind = "layer";
  double qk_norm_eps = 1e-5;
  std::optional<double> scale;

  void visit(Fields& f) override {
    BiasOptions::visit(f);
    f("qk_norm", qk_norm, "norm of each query and key before rope, one weight for all heads");
    f("qk_norm_kind", qk_norm_kind, "layer norm with a bias, or root mean square",
      one_of({"layer", "rms"}));
    f("qk_norm_eps", qk_norm_eps, "epsilon of qk_norm", above(0));
    f("scale", scale, "factor on q k^T (default: head_dim^-0.5)");
  }
  void derive(const HeadShape& shape) override {
    if (!scale) scale = 1 / std::sqrt(shape.head_dim);
  }
  Projections projections() const override {
    auto projections = BiasOptions::projections();
    projections.qk_norm = qk_norm;
    projections.centred_norm = projections.norm_bias = qk_norm_kind == "layer";
    projections.qk_norm_eps = qk_norm_eps;
    projections.scale = scale;
    return projections;
  }
  virtual const WeightMapOptions* map_options() const { return nullptr; }
};

using Sigmoid = MapHeads<FixedMapOptions<SigmoidMap, NormedOptions>>;

const RegisterMap<SigmoidMap> map("sigmoid");
const RegisterHeads<Sigmoid> registered("sigmoid", "sigmoids of the scores, each for itself");

}  // namespace
}  // namespace headlab
