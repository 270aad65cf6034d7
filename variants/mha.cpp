// Multi-head attention: every head attends by itself, softmax(q k^T / sqrt d) v.
//
// Vaswani et al., "Attention Is All You Need", arXiv 1706.03762, equations (1) and section 3.2.2.
// Query heads may share key/value heads: grouped-query attention (Ainslie et al., arXiv 2305.13245;
// query head h reads key/value head h // (H / Hkv)), one key/value head is multi-query attention
// (Shazeer, arXiv 1911.02150). qk_norm: Qwen3's RMS norm of queries and keys, before rope.
#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

class Mha : public ProjectedHeads<MappedOptions> {
 public:
  using ProjectedHeads::ProjectedHeads;

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto q = queries(x, call);                    // [B,H,T,d]
    const auto k = keys(x, call), v = values(x, call);  // [B,Hkv,S,d]
    const auto heads = attend(q, k, v, call, scale());  // [B,H,T,d]
    return {.y = output(heads, v, call)};               // [B,T,D]
  }
};

const RegisterHeads<Mha> registered("mha", "multi-head, grouped-query and multi-query attention");

}  // namespace
}  // namespace headlab
