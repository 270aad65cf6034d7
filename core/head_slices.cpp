// Layers with fewer heads: where heads lie in parameters, and what a slice keeps of them.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "core/head_kinds.h"
#include "core/torch.h"

namespace headlab {

Linear AttentionHeads::projection(const char* name, int64_t in, int64_t out, bool bias,
                                  const HeadAxes& axes) {
  auto linear = register_module(name, Linear(in, out, bias));
  HeadAxes rows;
  std::copy_if(axes.begin(), axes.end(), std::back_inserter(rows),
               [](const HeadAxis& axis) { return axis.dim == 0; });
  lay_out(std::string(name) + ".weight", axes);
  projections_.insert(std::string(name) + ".weight");
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

void AttentionHeads::set_made_of(std::shared_ptr<const KindBlock> block, const HeadShape& shape) {
  kind_ = block->kind();
  made_of_ = std::move(block);
  whole_shape_ = shape;
}

int64_t AttentionHeads::group_heads(const char* name, int64_t rows) {
  const int64_t H = shape_.heads;
  const auto left = shape_.groups.find(name);
  if (left != shape_.groups.end()) rows = left->second;  // adopt_indices() says which
  TORCH_CHECK(left != shape_.groups.end() || (rows > 0 && H % rows == 0), rows, " ", name,
              " do not divide ", H, " heads");
  const auto of_head = left != shape_.groups.end()
                           ? at::zeros({H}, at::kLong)
                           : at::arange(H, at::kLong).div(H / rows, "floor");
  own_groups_[name] = {rows, index_buffer((name + std::string("_map")).c_str(), of_head)};
  return rows;
}

Tensor AttentionHeads::of_heads(const char* group, const Tensor& t) const {
  return t.index_select(1, own_groups_.at(group).of_head);
}

// Whether `name` belongs to a layer inside this one, which answers for its own.
bool AttentionHeads::is_inner(const std::string& name) const {
  for (const auto& child : named_children())
    if (name.starts_with(child.key() + ".") &&
        std::dynamic_pointer_cast<AttentionHeads>(child.value()))
      return true;
  return false;
}

namespace {

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

// Of the heads at `rows`, each of which belongs to a row of a group.
SlicePlan::Group kept_group(const std::vector<int64_t>& group_rows,
                            const std::vector<int64_t>& rows) {
  SlicePlan::Group kept;
  for (int64_t row : rows) {
    const auto found = std::find(kept.rows.begin(), kept.rows.end(), group_rows[row]);
    kept.of_head.push_back(found - kept.rows.begin());
    if (found == kept.rows.end()) kept.rows.push_back(group_rows[row]);
  }
  return kept;
}

void init_uniform(Linear& linear, double bound) {
  at::NoGradGuard no_grad;
  linear->weight.uniform_(-bound, bound);
  if (linear->bias.defined()) linear->bias.zero_();
}

}  // namespace

void AttentionHeads::check_axes() const {
  const auto check = [&](const auto& named) {
    for (const auto& item : named)
      TORCH_CHECK(
          axes_.contains(item.key()) || indices_.contains(item.key()) || is_inner(item.key()), "'",
          item.key(),
          "' was registered without saying where its heads lie: use "
          "projection() or parameter(), or lay_out() where a submodule registers it");
  };
  check(named_parameters());
  check(named_buffers());
}

int64_t AttentionHeads::heads_in(const std::string& group) const {
  if (group == kQueryHeads) return shape_.heads;
  return group == kKvHeads ? shape_.kv_heads : own_groups_.at(group).rows;
}

std::vector<int64_t> AttentionHeads::group_rows(const std::string& group) const {
  if (group != kKvHeads) return to_vector(own_groups_.at(group).of_head);
  if (kv_map_.defined()) return to_vector(kv_map_);
  std::vector<int64_t> rows(shape_.heads);
  for (int64_t h = 0; h < shape_.heads; ++h) rows[h] = h / (shape_.heads / shape_.kv_heads);
  return rows;
}

Tensor AttentionHeads::own_kv_heads(const Tensor& built) const {
  if (!head_ids_.defined()) return built;
  const int64_t of_all = built.size(1);
  std::vector<int64_t> rows(shape_.kv_heads);
  std::iota(rows.begin(), rows.end(), 0);
  const auto ids = head_ids(), own = group_rows(kKvHeads);
  for (size_t h = 0; h < ids.size(); ++h) rows[own[h]] = ids[h] / (heads() / of_all);
  return built.index_select(1, at::tensor(rows, at::kLong).to(built.device()));  // [B,Hkv,T,e]
}

SlicePlan AttentionHeads::slice_plan(const std::vector<bool>& alive) const {
  SlicePlan plan;
  plan.alive = alive;
  const auto ids = head_ids();
  for (int64_t row = 0; row < std::ssize(ids); ++row) {
    if (!alive[ids[row]]) continue;
    plan.ids.push_back(ids[row]);
    plan.rows.push_back(row);
  }
  plan.shape = shape_;
  plan.shape.heads = std::ssize(plan.rows);
  auto& kv = plan.groups[kKvHeads] = kept_group(group_rows(kKvHeads), plan.rows);
  if (shape_.offers.first_values || shape_.offers.keys_values) {  // masked heads still offer
    for (auto& row : kv.of_head) row = kv.rows[row];
    kv.rows.resize(shape_.kv_heads);
    std::iota(kv.rows.begin(), kv.rows.end(), 0);
  }
  plan.shape.kv_heads = std::ssize(kv.rows);
  for (const auto& [name, group] : own_groups_) {
    const auto& own = plan.groups[name] = kept_group(group_rows(name), plan.rows);
    plan.shape.groups[name] = std::ssize(own.rows);
  }
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
    kept = keep_along(axis, kept,
                      axis.group == kQueryHeads ? plan.rows : plan.groups.at(axis.group).rows,
                      heads_in(axis.group));
  return kept.is_same(whole) ? whole.clone() : kept;
}

std::shared_ptr<AttentionHeads> AttentionHeads::slice_to(const std::vector<bool>& alive) const {
  check_axes();
  const auto plan = slice_plan(alive);
  auto layer = sliced_shell(plan);
  layer->kind_ = kind_;
  layer->made_of_ = made_of_;
  layer->whole_shape_ = whole_shape_;
  layer->adopt_indices(*this, plan);
  // What the smaller layer no longer needs it does not have.
  const auto take_over = [&](const auto& from, auto to) {
    for (auto& item : to)
      if (!layer->indices_.contains(item.key()) && !is_inner(item.key())) {
        const auto& whole = from[item.key()];
        item.value().set_data(sliced(item.key(), whole.detach(), plan));
        item.value().set_requires_grad(whole.requires_grad());
      }
  };
  take_over(named_parameters(), layer->named_parameters());
  take_over(named_buffers(), layer->named_buffers());
  return layer;
}

void AttentionHeads::adopt_indices(const AttentionHeads& from, const SlicePlan& plan) {
  alive_.resize_({from.heads()});
  head_ids_ = index_buffer("head_ids", at::tensor(plan.ids, at::kLong));
  const auto rows_of = [&](const std::string& group) {
    return at::tensor(plan.groups.at(group).of_head, at::kLong);
  };
  kv_map_ = index_buffer("kv_map", rows_of(kKvHeads));
  for (auto& [name, group] : own_groups_) group.of_head.set_data(rows_of(name));
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
