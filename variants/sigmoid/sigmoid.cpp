// Sigmoid attention: each weight depends on its own query and key alone.
//
// Ramapuram et al., "Theory, Analysis, and Best Practices for Sigmoid Self-Attention", arXiv
// 2409.04431, equation (3) and section 3; apple/ml-sigmoid-attention:
//   A_ij = sigmoid(z_ij + offset),   offset = -ln S, S the keys of the example
// so that rows sum to about 1 at first. `normalize` divides row i by sqrt(i + 1) or i + 1.
#include <cmath>

#include "core/config/alternatives.h"
#include "core/config/config.h"
#include "core/kernels/isa.h"
#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {

#define HEADLAB_DECLARE(isa) \
  namespace isa {            \
  RowMap sigmoid_rows();     \
  }
HEADLAB_EACH_ISA(HEADLAB_DECLARE)
#undef HEADLAB_DECLARE
const RowMapOnCuda* sigmoid_on_cuda();

namespace {

enum class Divisor { kNone, kSqrt, kLength };  // of row i: 1, sqrt(i + 1), i + 1

class SigmoidMap : public Map {
 public:
  SigmoidMap(std::optional<double> offset, Divisor divisor) : offset_(offset), divisor_(divisor) {}

  Tensor weights(const Tensor& z, const Tensor& allowed, const AttentionCall& call) const override {
    const double added = offset(call, z.size(3));
    const auto a = at::sigmoid(added == 0 ? z : z + added);
    return allowed.defined() ? a.masked_fill(allowed.logical_not(), 0) : a;
  }

  // Masks count as the authors' code counts them, which has no lengths: the keys of the call,
  // without those beyond the example's length.
  Tensor offsets(const AttentionCall& call, int64_t S,
                 const at::TensorOptions& options) const override {
    if (offset_) return {};
    const auto seen = within_length(call.key_length, S, options.device());  // [B,S]
    if (!seen.defined()) return {};
    return -seen.sum(1).clamp_min(1).to(options.dtype()).log().view({-1, 1, 1, 1});
  }

  Tensor row_divisors(const AttentionCall& call, int64_t T,
                      const at::TensorOptions& options) const override {
    if (divisor_ == Divisor::kNone) return {};
    const auto seen = (query_places(call, T, options.device()) + 1).to(options.dtype());
    return divisor_ == Divisor::kSqrt ? seen.sqrt() : seen;
  }

  const char* cannot_decode() const override {
    return offset_ ? nullptr : "its offset follows the number of keys; give a number as `offset`";
  }

  std::optional<RowMap> row_map(const AttentionCall& call, int64_t S) const override {
    auto map = HEADLAB_OF_ISA(sigmoid_rows);
#ifdef HEADLAB_CUDA
    map.cuda = sigmoid_on_cuda();
#endif
    map.number = offset(call, S);
    return map;
  }

 private:
  // Of all examples; 0 where offsets() has it.
  double offset(const AttentionCall& call, int64_t S) const {
    if (offset_) return *offset_;
    return call.key_length.defined() ? 0 : -std::log(static_cast<double>(S));
  }

  std::optional<double> offset_;  // none: by length
  Divisor divisor_;
};

struct SigmoidOptions : MapOptions {
  WordOrNumber offset{{"length"}};
  std::string normalize = "none";

  void visit(Fields& f) override {
    f("offset", offset,
      "added to the scores: length = -ln of the number of keys within the length; decoding needs a "
      "number, -ln of the training context");
    f("normalize", normalize, "divides row i by sqrt(i + 1), or by its length i + 1",
      one_of({"none", "sqrt", "length"}));
  }
  MapPtr map() const override {
    return std::make_shared<SigmoidMap>(offset.number(), normalize == "none"   ? Divisor::kNone
                                                         : normalize == "sqrt" ? Divisor::kSqrt
                                                                               : Divisor::kLength);
  }
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
  virtual const MapOptions* map_options() const { return nullptr; }
};

using Sigmoid = MapHeads<FixedMapOptions<SigmoidOptions, NormedOptions>>;

const RegisterMap<SigmoidOptions> map("sigmoid");
const RegisterHeads<Sigmoid> registered("sigmoid", "sigmoids of the scores, each for itself");

}  // namespace
}  // namespace headlab
