#include "core/attention/paths/chosen_rows.h"

#include <ATen/autocast_mode.h>

#include "core/attention/layers.h"
#include "core/attention/paths/held.h"
#include "core/attention/precision.h"
#include "core/torch.h"

namespace headlab {

ChosenRows::ChosenRows(const Tensor& chosen)
    : B(chosen.size(0)), H(chosen.size(1)), T(chosen.size(2)), starts(H * B + 1) {
  const auto places = chosen.transpose(0, 1).nonzero();  // [N,3] of h, b, t, in order
  head = places.select(1, 0).contiguous();
  query = places.select(1, 2).contiguous();
  token = places.select(1, 1) * T + query;
  const auto counts = chosen.sum(-1).t().to(at::kCPU, at::kLong).contiguous();  // [H,B]
  for (int64_t n = 0; n < H * B; ++n)
    starts[n + 1] = starts[n] + counts.const_data_ptr<int64_t>()[n];
}

Tensor ChosenRows::of_head(const Tensor& packed, int64_t h) const {
  return packed.slice(0, starts[h * B], starts[(h + 1) * B]);
}

Tensor ChosenRows::pack(const Tensor& x) const {
  return x.transpose(1, 2).reshape({B * T * H, x.size(3)}).index_select(0, token * H + head);
}

Tensor ChosenRows::unpack(const Tensor& packed) const {
  return packed.new_zeros({B * T * H, packed.size(1)})
      .index_copy(0, token * H + head, packed)
      .view({B, T, H, packed.size(1)})
      .transpose(1, 2);
}

namespace {

// x [M,D] of each row's token times weight[head]^T: [N,d].
Tensor gather_products(const Tensor& x, const Tensor& weight, const ChosenRows& rows) {
  std::vector<Tensor> of_heads;
  for (int64_t h = 0; h < rows.H; ++h)
    of_heads.push_back(
        product(x.index_select(0, rows.of_head(rows.token, h)), weight[h]));  // [n,d]
  return at::cat(of_heads);
}

// packed [N,d] times weight[head], summed at the rows' tokens: [M,D]. In float32 at least.
Tensor scatter_products(const Tensor& packed, const Tensor& weight, const ChosenRows& rows) {
  const auto type = at_least_float(packed);
  const auto sum = at::zeros({rows.B * rows.T, weight.size(2)}, packed.options().dtype(type));
  for (int64_t h = 0; h < rows.H; ++h)
    sum.index_add_(0, rows.of_head(rows.token, h),
                   product(rows.of_head(packed, h), weight[h].t()).to(type));  // [n,D]
  return sum.to(packed.scalar_type());
}

// Of the weight [H,d,D] that leads from x [M,D] to packed [N,d], or back.
Tensor weight_gradient(const Tensor& packed, const Tensor& x, const ChosenRows& rows) {
  std::vector<Tensor> of_heads;
  for (int64_t h = 0; h < rows.H; ++h) {
    const auto from = x.index_select(0, rows.of_head(rows.token, h));    // [n,D]
    of_heads.push_back(product(rows.of_head(packed, h).t(), from.t()));  // [d,D]
  }
  return at::stack(of_heads);
}

// gather_products(), or with kBack scatter_products(): the gradient of each of the two is the
// other.
template <bool kBack>
class RowProducts : public torch::autograd::Function<RowProducts<kBack>> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x,
                        const Tensor& weight, const ChosenRows& rows) {
    ctx->save_for_backward({x, weight});
    hold(ctx, rows);
    return kBack ? scatter_products(x, weight, rows) : gather_products(x, weight, rows);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "rows that heads choose have no second derivatives");
    const auto tensors = ctx->get_saved_variables();
    const auto &x = tensors[0], &weight = tensors[1], &g = gradients[0];
    const auto& rows = held<ChosenRows>(ctx);
    if (kBack) return {gather_products(g, weight, rows), weight_gradient(x, g, rows), Tensor()};
    return {scatter_products(g, weight, rows), weight_gradient(g, x, rows), Tensor()};
  }
};

// In the type of the products of this device now.
Tensor cast(const Tensor& t) {
  const auto device = t.device().type();
  if (!at::autocast::is_autocast_enabled(device)) return t;
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), t, device);
}

}  // namespace

Tensor project_rows(const Tensor& x, const Tensor& weight, const Tensor& bias,
                    const ChosenRows& rows) {
  const auto packed = RowProducts<false>::apply(cast(x).flatten(0, 1), cast(weight), rows);
  return bias.defined() ? packed + cast(bias).index_select(0, rows.head) : packed;
}

Tensor sum_rows(const Tensor& packed, const Tensor& weight, const ChosenRows& rows) {
  return RowProducts<true>::apply(cast(packed), cast(weight), rows)
      .view({rows.B, rows.T, weight.size(2)});
}

}  // namespace headlab
