// Shared keys and values: heads of any other kind attend to the keys and values of an earlier
// layer, with queries of their own. They have no projections of keys and values, and no cache. The
// first layer of a model, and a layer alone, is the inner kind as it is.
//
// Brandon et al., "Reducing Transformer Key-Value Cache Size with Cross-Layer Attention", arXiv
// 2405.12981 (CLA2: each second layer reads the one before); Sun et al. (YOCO), arXiv 2405.05254.
//   q = x q^T,   k, v = those that the layer before attended to: after norm, rotation and mixing
#include "core/torch.h"
#include "core/wrapped_heads.h"

namespace headlab {
namespace {

class SharedKv : public WrappedHeads {
 public:
  struct Options : WrapperOptions {
    Options() : WrapperOptions("mha") {}
    LinkParts reads() const override {
      auto parts = WrapperOptions::reads();
      parts.keys_values = true;
      return parts;
    }
    HeadTraits traits() const override {
      auto traits = WrapperOptions::traits();
      traits.cross = traits.inputs = false;
      return traits;
    }
    void check(const Complain& complain) const override {
      if (!WrapperOptions::traits().plain_projections)
        complain("inner",
                 "'" + inner.kind() + "' heads have no plain projections of keys and values");
    }
  };

  SharedKv(const HeadShape& shape, const Options& options)
      : WrappedHeads(inner_shape(shape), options) {}

 private:
  static HeadShape inner_shape(HeadShape shape) {
    shape.keys_given = shape.values_given = shape.offered.keys_values;
    return shape;
  }

  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    if (!shape_.offered.keys_values) return run_inner(x, call);
    auto own = call;
    own.shaping.keys = own_kv_heads(linked(call, &LayerLink::keys));
    own.shaping.values = own_kv_heads(linked(call, &LayerLink::values));  // [B,Hkv,S,.]
    return run_inner(x, own);
  }
};

const RegisterHeads<SharedKv> registered("shared_kv",
                                         "any other kind on the keys and values of a layer before");

}  // namespace
}  // namespace headlab
