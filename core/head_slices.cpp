// Layers with fewer heads: where heads lie in parameters, and what a slice keeps of them.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "core/heads.h"
#include "core/torch.h"

namespace headlab {

Linear AttentionHeads::projection(const char* name, int64_t in, int64_t out, bool bias,
                                  const HeadAxes& axes) {
  auto linear = register_module(name, Linear(in, out, bias));
  HeadAxes rows;
  std::copy_if(axes.begin(), axes.end(), std::back_inserter(rows),
               [](const HeadAxis& axis) { return axis.dim == 0; });
  lay_out(std::string(name) + ".weight", axes);
  if (bias) lay_out(std::string(name) + ".bias", rows);
  return linear;
}

Linear& AttentionHeads::output_projection(int64_t width, bool bias) {
  return o_ = projection("o", width, shape_.d_model, bias, columns_of_heads());
}

Tensor AttentionHeads::parameter(const char* name, const Tensor& value, const HeadAxes& axes) {
  lay_out(name, axes);
  return register_parameter(name, value);
}

void AttentionHeads::lay_out(const std::string& name, const HeadAxes& axes) { axes_[name] = axes; }

void AttentionHeads::set_maker(Maker make) {
  make_ = std::move(make);
  check_axes();
}

namespace {

// Whether `name` belongs to a layer inside this one, which answers for its own.
bool is_inner(const torch::nn::Module& layer, const std::string& name) {
  for (const auto& child : layer.named_children())
    if (name.starts_with(child.key() + ".") &&
        std::dynamic_pointer_cast<AttentionHeads>(child.value()))
      return true;
  return false;
}

// The entries of the given heads along one axis; the layer has H heads there.
Tensor keep_along(const HeadAxis& axis, const Tensor& t, const std::vector<int64_t>& heads,
                  int64_t H) {
  const int64_t count = axis.count.value_or(H);
  if (count == 0) return t;
  TORCH_CHECK(t.size(axis.dim) % (axis.repeat * count) == 0, "dimension ", axis.dim, " of ",
              t.sizes(), " does not hold ", axis.repeat, " x ", count, " heads");
  std::vector<int64_t> rows;
  for (int64_t h : heads)
    if (h >= axis.first && h < axis.first + count) rows.push_back(h - axis.first);
  const int64_t width = t.size(axis.dim) / (axis.repeat * count);
  return t.unflatten(axis.dim, {axis.repeat, count, width})
      .index_select(axis.dim + 1, at::tensor(rows, at::kLong).to(t.device()))
      .flatten(axis.dim, axis.dim + 2);
}

std::vector<int64_t> to_list(const Tensor& t) {
  const auto cpu = t.to(at::kCPU, at::kLong).contiguous();
  return {cpu.data_ptr<int64_t>(), cpu.data_ptr<int64_t>() + cpu.numel()};
}

}  // namespace

void AttentionHeads::check_axes() const {
  const auto check = [&](const auto& named) {
    for (const auto& item : named)
      TORCH_CHECK(axes_.contains(item.key()) || indices_.contains(item.key()) ||
                      is_inner(*this, item.key()),
                  "'", item.key(),
                  "' was registered without saying where its heads lie: use "
                  "projection() or parameter(), or lay_out() where a submodule registers it");
  };
  check(named_parameters());
  check(named_buffers());
}

std::vector<int64_t> AttentionHeads::kv_rows() const {
  if (kv_map_.defined()) return to_list(kv_map_);
  std::vector<int64_t> rows(shape_.heads);
  for (int64_t h = 0; h < shape_.heads; ++h) rows[h] = h / (shape_.heads / shape_.kv_heads);
  return rows;
}

SlicePlan AttentionHeads::slice_plan(const std::vector<bool>& alive) const {
  SlicePlan plan;
  plan.alive = alive;
  const auto ids = head_ids();
  const auto groups = kv_rows();
  for (int64_t row = 0; row < std::ssize(ids); ++row) {
    if (!alive[ids[row]]) continue;
    plan.ids.push_back(ids[row]);
    plan.rows.push_back(row);
    auto found = std::find(plan.kv_rows.begin(), plan.kv_rows.end(), groups[row]);
    plan.kv_map.push_back(found - plan.kv_rows.begin());
    if (found == plan.kv_rows.end()) plan.kv_rows.push_back(groups[row]);
  }
  if (shape_.offers.any()) {  // masked heads still offer
    for (auto& row : plan.kv_map) row = plan.kv_rows[row];
    plan.kv_rows.resize(shape_.kv_heads);
    std::iota(plan.kv_rows.begin(), plan.kv_rows.end(), 0);
  }
  plan.shape = shape_;
  plan.shape.heads = std::ssize(plan.rows);
  plan.shape.kv_heads = std::ssize(plan.kv_rows);
  return plan;
}

std::shared_ptr<AttentionHeads> AttentionHeads::sliced_shell(const SlicePlan& plan) const {
  TORCH_CHECK(make_, "slice: this layer was not built by its kind's make()");
  return make_(plan.shape);
}

Tensor AttentionHeads::sliced(const std::string& name, const Tensor& whole,
                              const SlicePlan& plan) const {
  Tensor kept = whole;
  for (const auto& axis : axes_.at(name))
    kept = keep_along(axis, kept, axis.kv ? plan.kv_rows : plan.rows,
                      axis.kv ? shape_.kv_heads : shape_.heads);
  return kept.is_same(whole) ? whole.clone() : kept;
}

std::shared_ptr<AttentionHeads> AttentionHeads::slice_to(const std::vector<bool>& alive) const {
  check_axes();
  const auto plan = slice_plan(alive);
  auto layer = sliced_shell(plan);
  layer->set_kind(kind_);
  layer->adopt_indices(*this, plan);
  // What the smaller layer no longer needs it does not have.
  const auto take_over = [&](const auto& from, auto to) {
    for (auto& item : to)
      if (!layer->indices_.contains(item.key()) && !is_inner(*this, item.key()))
        item.value().set_data(sliced(item.key(), from[item.key()].detach(), plan));
  };
  take_over(named_parameters(), layer->named_parameters());
  take_over(named_buffers(), layer->named_buffers());
  return layer;
}

void AttentionHeads::adopt_indices(const AttentionHeads& from, const SlicePlan& plan) {
  alive_.resize_({from.heads()});
  head_ids_ = index_buffer("head_ids", at::tensor(plan.ids, at::kLong));
  kv_map_ = index_buffer("kv_map", at::tensor(plan.kv_map, at::kLong));
  mask_heads({});
  train(from.is_training());
  if (const auto all = from.parameters(); !all.empty())
    to(all.front().device(), all.front().scalar_type());
}

void init_normal(Linear& linear, double std) {
  at::NoGradGuard no_grad;
  linear->weight.normal_(0, std);
  if (linear->bias.defined()) linear->bias.zero_();
}

double residual_std(int64_t layers) { return 0.02 / std::sqrt(2.0 * static_cast<double>(layers)); }

namespace {

void init_uniform(Linear& linear, double bound) {
  at::NoGradGuard no_grad;
  linear->weight.uniform_(-bound, bound);
  if (linear->bias.defined()) linear->bias.zero_();
}

}  // namespace

void init_input(Linear& linear, const HeadShape& shape) {
  if (shape.init != Init::kXavier) return init_normal(linear, 0.02);
  // Gain 2^-0.5: torch draws q, k and v as one matrix.
  init_uniform(linear, std::sqrt(3.0 / static_cast<double>(linear->weight.size(0) +
                                                           linear->weight.size(1))));
}

void init_projections(std::initializer_list<Linear*> inputs, Linear& output,
                      const HeadShape& shape) {
  for (auto* linear : inputs) init_input(*linear, shape);
  init_output(output, shape);
}

void init_output(Linear& linear, const HeadShape& shape) {
  if (shape.init == Init::kGpt2) return init_normal(linear, residual_std(shape.layers));
  if (shape.init == Init::kPlain) return init_normal(linear, 0.02);
  init_uniform(linear,
               1 / std::sqrt(std::max<double>(1, static_cast<double>(linear->weight.size(1)))));
}

}  // namespace headlab
