#include "variants/mta/map_convolution.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>

#include "core/attention/paths/held.h"
#include "core/attention/precision.h"
#include "core/torch.h"
#include "variants/mta/convolution_rows.h"

namespace headlab {
namespace {

// What a pass needs beside its tensors.
struct Shape {
  Tensor allowed;  // bool [B,H,N,S] or undefined
  int64_t T, before;
};

template <class T>
MapConvolution<T> problem(const Tensor& s, const Tensor& kernel, const Shape& shape) {
  MapConvolution<T> p{};
  p.H = s.size(1), p.rows = s.size(2), p.made = shape.T, p.keys = s.size(3);
  p.cq = kernel.size(1), p.ck = kernel.size(2), p.before = shape.before;
  p.map = view<T>(s), p.allowed = view<bool>(shape.allowed),
  p.kernel = kernel.template const_data_ptr<T>();
  return p;
}

template <class T>
void run(const MapConvolution<T>& p, int64_t B, bool back) {
  const auto kernels = of_type(HEADLAB_OF_ISA(convolution_kernels), T());
  const auto work = back ? kernels.backward : kernels.forward;
  at::parallel_for(0, B * p.H * convolved_blocks(p), 1, [&](int64_t begin, int64_t end) {
    const auto room = std::make_unique_for_overwrite<T[]>(convolution_room(p));
    for (int64_t task = begin; task < end; ++task) work(p, task, room.get());
  });
}

template <class T>
Tensor forward(const Tensor& s, const Tensor& kernel, const Shape& shape) {
  auto p = problem<T>(s, kernel, shape);
  const auto out = at::empty({s.size(0), p.H, p.made, p.keys}, s.options());
  p.out = out.template data_ptr<T>();
  run(p, s.size(0), /*back=*/false);
  return out;
}

template <class T>
std::pair<Tensor, Tensor> backward(const Tensor& s, const Tensor& kernel, const Shape& shape,
                                   const Tensor& grad) {
  auto p = problem<T>(s, kernel, shape);
  const auto of_map = at::empty(s.sizes(), s.options());
  const auto of_blocks = at::empty({s.size(0), p.H, convolved_blocks(p), p.cq, p.ck}, s.options());
  p.grad_out = view<T>(grad);
  p.grad_map = of_map.template data_ptr<T>(), p.grad_kernel = of_blocks.template data_ptr<T>();
  run(p, s.size(0), /*back=*/true);
  return {of_map, of_blocks.sum(at::IntArrayRef({0, 2}))};
}

class Convolve : public torch::autograd::Function<Convolve> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& s,
                        const Tensor& kernel, const Shape& shape) {
    ctx->save_for_backward({s, kernel});
    hold(ctx, shape);
    return s.scalar_type() == at::kFloat ? headlab::forward<float>(s, kernel, shape)
                                         : headlab::forward<double>(s, kernel, shape);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "convolved maps have second derivatives on backend eager only");
    const auto saved = ctx->get_saved_variables();
    const auto& shape = held<Shape>(ctx);
    const auto grad = grads[0].contiguous();
    const auto [of_map, of_kernel] =
        grad.scalar_type() == at::kFloat
            ? headlab::backward<float>(saved[0], saved[1], shape, grad)
            : headlab::backward<double>(saved[0], saved[1], shape, grad);
    return {of_map, of_kernel, Tensor()};
  }
};

// The same by torch.
Tensor by_planes(const Tensor& s, const Tensor& kernel, int64_t T, int64_t before) {
  const int64_t S = s.size(3), cq = kernel.size(1), ck = kernel.size(2);
  const int64_t sides = std::max(before, ck - 1 - before);
  // By planes torch takes twice the time, most of it for the gradient.
  const auto all =
      at::conv2d(s.contiguous(at::MemoryFormat::ChannelsLast), kernel.unsqueeze(1), {},
                 /*stride=*/1, at::IntArrayRef{cq - 1, sides}, /*dilation=*/1, s.size(1));
  return all.narrow(2, s.size(2) - T, T).narrow(3, sides - before, S);
}

}  // namespace

Tensor convolve_map(const Tensor& s, const Tensor& allowed, const Tensor& kernel, int64_t T,
                    int64_t before, Backend backend) {
  const WithoutAutocast exact;
  const auto type = s.scalar_type();
  const auto w = kernel.to(type);
  const bool eager = backend == Backend::kEager || !s.is_cpu() || s.numel() == 0 ||
                     (type != at::kFloat && type != at::kDouble);
  if (eager)
    return by_planes(allowed.defined() ? s.masked_fill(allowed.logical_not(), 0) : s, w, T, before);
  Shape shape{{}, T, before};
  if (allowed.defined()) {
    auto sizes = allowed.sizes().vec();
    sizes.back() = s.size(3);
    shape.allowed = allowed.expand(sizes).contiguous().expand(s.sizes());
  }
  return Convolve::apply(s.contiguous(), w.contiguous(), shape);
}

}  // namespace headlab
