#include "experiments/cases/layer_sizes.h"

#include <fmt/format.h>

#include "core/torch.h"
#include "experiments/models/stack_options.h"

namespace headlab {
namespace {

constexpr double kMost = 1 << 20;  // so that no product of three sizes overflows

}  // namespace

void LayerSizes::visit(Fields& f) {
  f("d_model", d_model, "width of the layer", between(1, kMost));
  f("heads", heads, "query heads", between(1, kMost));
  f("head_dim", head_dim, "width of a head (default: d_model / heads)", between(1, kMost));
  f("kv_heads", kv_heads, "key/value heads (default: heads)", between(1, kMost));
  f("attention", attention, "kind of heads and its options");
}

void LayerSizes::check(const Complain& complain) const {
  if (d_model == 0) return complain("d_model", "is missing");
  if (heads == 0) return complain("heads", "is missing");
  check_heads(d_model, heads, head_dim, kv_heads, complain);
}

HeadShape LayerSizes::shape() const {
  HeadShape shape;
  shape.d_model = d_model;
  shape.heads = heads;
  shape.head_dim = head_dim.value_or(d_model / heads);
  shape.kv_heads = kv_heads.value_or(heads);
  return shape;
}

// Every kind projects the outputs of all heads to the width of the layer.
void LayerSizes::check_weights(const CaseFile& file, int64_t layers) const {
  const auto sizes = shape();
  const auto head_dim = static_cast<double>(sizes.head_dim);
  file.require_weights(
      static_cast<double>(layers) * static_cast<double>(heads) * head_dim *
          static_cast<double>(d_model),
      fmt::format("{} heads of head_dim {} in d_model {}", heads, sizes.head_dim, d_model));
}

}  // namespace headlab
