#include "experiments/training/gradients.h"

#include <algorithm>
#include <map>

#include "core/torch.h"

namespace headlab {

Gradients::Gradients(const std::vector<Tensor>& parameters)
    : reached_(std::make_shared<std::vector<uint8_t>>(parameters.size())) {
  std::map<at::ScalarType, int64_t> sizes;
  for (const auto& p : parameters) sizes[p.scalar_type()] += p.numel();
  std::map<at::ScalarType, Tensor> free;
  for (const auto& [type, size] : sizes) {
    buffers_.push_back(at::zeros(size, parameters.front().options().dtype(type)));
    free[type] = buffers_.back();
  }
  for (const auto& p : parameters) {
    Tensor& rest = free[p.scalar_type()];
    const auto view = rest.narrow(0, 0, p.numel()).view(p.sizes());
    rest = rest.narrow(0, p.numel(), rest.numel() - p.numel());
    const size_t n = slots_.size();
    const auto hook =
        p.register_hook([reached = reached_, n](const Tensor&) { (*reached)[n] = 1; });
    slots_.push_back({p, view, hook});
  }
}

Gradients::~Gradients() {
  for (auto& slot : slots_) {
    slot.parameter.remove_hook(slot.hook);
    slot.parameter.mutable_grad().reset();
  }
}

void Gradients::begin() {
  zero();
  std::ranges::fill(*reached_, 0);
  for (auto& slot : slots_) slot.parameter.mutable_grad() = slot.view;
}

void Gradients::zero() {
  for (auto& buffer : buffers_) buffer.zero_();
}

void Gradients::sum(Comm& comm) {
  for (auto& buffer : buffers_) comm.sum(buffer);
}

void Gradients::divide(const Tensor& by) {
  for (auto& buffer : buffers_) buffer.div_(by);
}

void Gradients::end(const std::vector<bool>& reached) {
  for (size_t n = 0; n < slots_.size(); ++n)
    if (!reached[n]) slots_[n].parameter.mutable_grad().reset();
}

std::vector<bool> Gradients::reached() const { return {reached_->begin(), reached_->end()}; }

}  // namespace headlab
