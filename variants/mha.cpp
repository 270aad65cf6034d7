// Multi-head attention: every head attends by itself, softmax(q k^T / sqrt d) v.
//
// Vaswani et al., "Attention Is All You Need", arXiv 1706.03762, equations (1) and section 3.2.2.
// Query heads may share key/value heads: grouped-query attention (Ainslie et al., arXiv 2305.13245;
// query head h reads key/value head h // (H / Hkv)), one key/value head is multi-query attention
// (Shazeer, arXiv 1911.02150). qk_norm: Qwen3's RMS norm of queries and keys, before rope.
#include "core/observe/probe.h"
#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

class Mha : public ProjectedHeads {
 public:
  struct Options : MhaOptions {
    HeadTraits traits() const override { return {.grouped = true}; }
  };

  Mha(const HeadShape& shape, const Options& options)
      : ProjectedHeads(shape, options.traits(), options.projections()), options_(options) {}

  std::shared_ptr<AttentionHeads> slice() const override {
    return slice_projections<Mha>(options_, kept_heads());
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadContext& ctx) override {
    if (ctx.probe) ctx.probe->output_weight(o_->weight);
    const auto q = queries(x, ctx);                            // [B,H,T,d]
    const auto k = keys(x, ctx), v = values(x, ctx);           // [B,Hkv,S,d]
    const auto heads = attend(q, k, v, ctx, scale(options_));  // [B,H,T,d]
    return {.y = output(heads, ctx)};                          // [B,T,D]
  }

  Options options_;
};

const RegisterHeads<Mha> registered("mha", "multi-head, grouped-query and multi-query attention");

}  // namespace
}  // namespace headlab
