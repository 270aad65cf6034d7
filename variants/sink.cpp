// Attention with a sink: each head has a logit that takes part in the softmax and has no value, so
// that a head can say nothing without attending to some first token.
//
// gpt-oss (OpenAI 2025, arXiv 2508.10925), whose logits are learned; "off by one" is the logit 0
// (Miller 2023; torch's add_zero_attn). The sink is not scaled and every row sees it:
//   A_ij = exp(z_ij) / (exp(sink_h) + sum_j exp(z_ij))
//        = g softmax(z)_ij,   g = sigmoid(LSE_i - sink_h)
#include "core/config/alternatives.h"
#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

struct SinkOptions : MapOptions {
  WordOrNumber sink{{"learned"}};

  void visit(Fields& f) override {
    f("sink", sink, "score of the sink, which has no value: learned of each head, or a number");
  }
  MapPtr map() const override {
    return std::make_shared<Softmax>(at::full({1}, sink.number().value_or(0), at::kDouble));
  }
  std::optional<Learned> learned(int64_t heads) const override {
    if (sink.number()) return {};
    return Learned{"sink", at::randn({heads}) * 0.02};
  }
};

using Sink = MapHeads<FixedMapOptions<SinkOptions>>;

const RegisterMap<SinkOptions> map("sink");
const RegisterHeads<Sink> registered("sink", "softmax with a learned logit that has no value");

}  // namespace
}  // namespace headlab
