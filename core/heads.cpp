#include "core/heads.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/config/registry.h"
#include "core/gate_target.h"
#include "core/observe/probe.h"
#include "core/torch.h"

namespace headlab {

void check_heads(int64_t d_model, int64_t heads, std::optional<int64_t> head_dim,
                 std::optional<int64_t> kv_heads, const Complain& complain) {
  if (!head_dim && d_model % heads != 0)
    complain("heads",
             fmt::format("{} heads do not divide d_model {}; choose a divisor or set head_dim",
                         heads, d_model));
  if (kv_heads && heads % *kv_heads != 0)
    complain("kv_heads",
             fmt::format("{} kv_heads do not divide heads {}; choose a divisor", *kv_heads, heads));
}

AttentionHeads::AttentionHeads(const HeadShape& shape, const HeadTraits& traits)
    : shape_(shape), traits_(traits) {
  alive_ = index_buffer("alive", at::ones({shape.heads}, at::kByte));
}

namespace {

// true where `given` broadcasts to `target`
bool broadcasts(at::IntArrayRef given, at::IntArrayRef target) {
  if (given.size() > target.size()) return false;
  for (size_t i = 1; i <= given.size(); ++i) {
    const int64_t n = given[given.size() - i];
    if (n != 1 && n != target[target.size() - i]) return false;
  }
  return true;
}

// [B,1,1,S] or undefined
bool is_key_mask(const Tensor& allowed) {
  return !allowed.defined() || allowed.dim() == 1 ||
         (allowed.dim() == 4 && allowed.size(1) == 1 && allowed.size(2) == 1);
}

// Heads are dimension -`from_end` of a tensor that may be broadcast along it.
Tensor select_heads(const Tensor& t, const Tensor& ids, int64_t from_end) {
  if (!t.defined() || t.dim() < from_end || t.size(-from_end) == 1) return t;
  return t.index_select(-from_end, ids);
}

std::vector<int64_t> to_vector(const Tensor& t) {
  auto cpu = t.to(at::kCPU, at::kLong).contiguous();
  return {cpu.data_ptr<int64_t>(), cpu.data_ptr<int64_t>() + cpu.numel()};
}

}  // namespace

void AttentionHeads::check(const Tensor& x, const HeadContext& ctx) const {
  TORCH_CHECK(x.dim() == 3 && x.size(2) == shape_.d_model, "x must be [B, T, ", shape_.d_model,
              "], is ", x.sizes());
  const int64_t B = x.size(0), T = x.size(1), H = heads();
  const auto& promises = traits_;
  const bool cross = ctx.memory.defined();
  if (cross) {
    TORCH_CHECK(promises.cross, "this kind has no cross-attention, but a memory was given");
    TORCH_CHECK(ctx.memory.dim() == 3 && ctx.memory.size(0) == B, "memory must be [", B,
                ", S, D], is ", ctx.memory.sizes());
    TORCH_CHECK(!ctx.mask.causal && ctx.mask.window == 0,
                "causal or window together with a memory: places of x and memory do not compare");
  }
  TORCH_CHECK(promises.causal || !ctx.mask.causal, "this kind cannot be causal");
  TORCH_CHECK(promises.decodes || !ctx.cache, "this kind cannot decode with a cache");
  TORCH_CHECK(promises.rotary || !ctx.rotary, "this kind has no rotary positions");
  TORCH_CHECK(ctx.mask.window >= 0, "window must be at least 0, is ", ctx.mask.window);
  TORCH_CHECK(promises.token_map || (ctx.mask.window == 0 && !ctx.bias.defined() &&
                                     !ctx.position_bias && is_key_mask(ctx.mask.allowed)),
              "this kind's weights are not over tokens: no window, no bias, and a mask only as "
              "[B,1,1,S]");
  const int64_t past = ctx.cache && !cross ? ctx.cache->length() : 0;
  const int64_t S = cross ? ctx.memory.size(1) : past + T;
  const std::vector<int64_t> map{B, H, T, S};
  if (ctx.mask.allowed.defined()) {
    TORCH_CHECK(ctx.mask.allowed.scalar_type() == at::kBool, "mask.allowed must be bool");
    TORCH_CHECK(broadcasts(ctx.mask.allowed.sizes(), map), "mask.allowed ",
                ctx.mask.allowed.sizes(), " does not broadcast to [B,H,T,S] = ", map);
  }
  if (ctx.bias.defined())
    TORCH_CHECK(broadcasts(ctx.bias.sizes(), map), "bias ", ctx.bias.sizes(),
                " does not broadcast to [B,H,T,S] = ", map);
  if (ctx.noise.defined())
    TORCH_CHECK(ctx.noise.dim() == 1 && ctx.noise.size(0) == H, "noise must be [", H, "], is ",
                ctx.noise.sizes());
  if (ctx.offset.defined())
    TORCH_CHECK(
        broadcasts(ctx.offset.sizes(), {B, H, T, value_width()}), "offset ", ctx.offset.sizes(),
        " does not broadcast to [B,H,T,e] = ", std::vector<int64_t>{B, H, T, value_width()});
  if (ctx.uniform.defined())
    TORCH_CHECK(ctx.uniform.scalar_type() == at::kBool && ctx.uniform.dim() == 1 &&
                    ctx.uniform.size(0) == H,
                "uniform must be bool [", H, "], is ", ctx.uniform.sizes());
  for (const auto* length : {&ctx.mask.query_length, &ctx.mask.key_length})
    TORCH_CHECK(!length->defined() || (length->dim() == 1 && length->size(0) == B),
                "query_length and key_length must be [", B, "], one is ", length->sizes());
  if (ctx.positions.defined())
    TORCH_CHECK(ctx.positions.dim() == 1 && ctx.positions.size(0) == T, "positions must be [", T,
                "], are ", ctx.positions.sizes());
  if (ctx.gates.defined())
    TORCH_CHECK(broadcasts(ctx.gates.sizes(), {B, H, T}) ||
                    (ctx.gates.dim() == 4 && broadcasts(ctx.gates.sizes().slice(0, 3), {B, H, T})),
                "gates ", ctx.gates.sizes(),
                " do not broadcast to [B,H,T] = ", std::vector<int64_t>{B, H, T}, " or [B,H,T,e]");
}

void AttentionHeads::select_own_heads(HeadContext& ctx) const {
  const auto& ids = head_ids_;
  ctx.head_ids = ids;
  if (traits_.grouped) ctx.kv_map = kv_map_;  // elsewhere head h has its own keys and values
  ctx.mask.allowed = select_heads(ctx.mask.allowed, ids, 3);
  ctx.bias = select_heads(ctx.bias, ids, 3);
  ctx.noise = select_heads(ctx.noise, ids, 1);
  ctx.alive = select_heads(ctx.alive, ids, 1);
  ctx.uniform = select_heads(ctx.uniform, ids, 1);
  ctx.offset = select_heads(ctx.offset, ids, 3);
  ctx.gates = select_heads(ctx.gates, ids, ctx.gates.defined() && ctx.gates.dim() == 4 ? 3 : 2);
}

HeadOutput AttentionHeads::forward(const Tensor& x, HeadContext ctx) {
  check(x, ctx);
  const int64_t T = x.size(1);
  if (!ctx.positions.defined()) {
    const int64_t past = ctx.cache ? ctx.cache->length() : 0;
    ctx.positions = at::arange(past, past + T, at::TensorOptions(at::kLong).device(x.device()));
  }
  ctx.rng.layer = shape_.layer;
  ctx.dropout = is_training() ? shape_.dropout : 0;
  const auto lives = alive();
  if (lacks_heads()) {
    // For heads that do not talk to each other absence is an output gate of 0.
    ctx.alive = alive_.to(at::kBool);  // [H]
    ctx.gates = multiply_gates(ctx.gates, alive_.to(x.scalar_type()).view({1, -1, 1}));
    if (ctx.offset.defined()) ctx.offset = ctx.offset * alive_.to(x.scalar_type()).view({-1, 1, 1});
  }
  if (ctx.bias.defined()) ctx.bias = level(ctx.bias, ctx);
  if (head_ids_.defined()) select_own_heads(ctx);
  if (ctx.probe) ctx.probe->enter(shape_.layer, heads(), head_ids(), lives);
  auto out = compute(x, ctx);
  if (ctx.cache) ctx.cache->advance(T);
  if (ctx.alive.defined() && out.gates.defined())
    out.gates = out.gates.masked_fill(ctx.alive.logical_not(), 0);
  if (head_ids_.defined() && out.gates.defined()) {
    auto full = out.gates.new_zeros({x.size(0), T, heads()});
    out.gates = full.index_copy(2, head_ids_, out.gates);  // [B,T,H original]
  }
  return out;
}

std::vector<int64_t> AttentionHeads::head_ids() const {
  if (head_ids_.defined()) return to_vector(head_ids_);
  std::vector<int64_t> ids(heads());
  for (int64_t h = 0; h < heads(); ++h) ids[h] = h;
  return ids;
}

std::vector<bool> AttentionHeads::alive() const {
  // Read once a change: on a GPU each reading waits for all work queued there.
  if (const int64_t version = alive_._version(); version != lives_version_) {
    lives_.clear();
    for (int64_t a : to_vector(alive_)) lives_.push_back(a != 0);
    lives_version_ = version;
  }
  return lives_;
}

bool AttentionHeads::lacks_heads() const {
  const auto lives = alive();
  const auto ids = head_ids();
  return std::any_of(ids.begin(), ids.end(), [&](int64_t h) { return !lives[h]; });
}

std::vector<Statistic> AttentionHeads::own_statistics() const { return {}; }
LearnedGates AttentionHeads::learned_gates() const { return {}; }

void AttentionHeads::mask_heads(const std::vector<int64_t>& masked) {
  auto lives = at::zeros({heads()}, at::kByte);
  for (int64_t h : head_ids()) lives[h] = 1;
  for (int64_t h : masked) {
    TORCH_CHECK(h >= 0 && h < heads(), "head ", h, " does not exist: the layer has heads 0 to ",
                heads() - 1);
    lives[h] = 0;
  }
  at::NoGradGuard no_grad;
  alive_.copy_(lives);
}

void AttentionHeads::adopt_indices(const AttentionHeads& from, const Kept& kept) {
  alive_.resize_({from.heads()});
  head_ids_ = index_buffer("head_ids", at::tensor(kept.ids, at::kLong));
  kv_map_ = index_buffer("kv_map", at::tensor(kept.kv_map, at::kLong));
  mask_heads({});
  train(from.is_training());
  const auto like = from.parameters().front();
  to(like.device(), like.scalar_type());
}

Tensor AttentionHeads::index_buffer(const char* name, const Tensor& indices) {
  indices_.emplace_back(register_buffer(name, indices), indices.scalar_type());
  return indices_.back().first;
}

void AttentionHeads::restore_indices() {
  for (auto& [indices, type] : indices_) indices.set_data(indices.to(type));
}

void AttentionHeads::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  Module::to(device, dtype, non_blocking);
  restore_indices();
}

void AttentionHeads::to(torch::Dtype dtype, bool non_blocking) {
  Module::to(dtype, non_blocking);
  restore_indices();
}

Linear AttentionHeads::projection(const char* name, int64_t in, int64_t out, bool bias) {
  // torch cannot initialise a layer without inputs, which a layer that lost all its heads has.
  auto options = torch::nn::LinearOptions(std::max<int64_t>(in, 1), out).bias(bias);
  auto linear = register_module(name, Linear(options));
  if (in == 0) linear->weight.set_data(at::empty({out, 0}));
  return linear;
}

double AttentionHeads::flops(int64_t T, int64_t S, double pairs) const {
  const double width = static_cast<double>(shape_.heads * shape_.head_dim);
  const double kv_width = static_cast<double>(shape_.kv_heads * shape_.head_dim);
  const double D = static_cast<double>(shape_.d_model);
  return 4.0 * T * D * width + 4.0 * S * D * kv_width + 4.0 * pairs * width;
}

std::vector<int64_t> AttentionHeads::kv_rows() const {
  if (kv_map_.defined()) return to_vector(kv_map_);
  std::vector<int64_t> rows(shape_.heads);
  for (int64_t h = 0; h < shape_.heads; ++h) rows[h] = h / (shape_.heads / shape_.kv_heads);
  return rows;
}

AttentionHeads::Kept AttentionHeads::kept_heads() const {
  Kept kept;
  const auto ids = head_ids();
  const auto lives = alive();
  const auto groups = kv_rows();
  for (int64_t row = 0; row < static_cast<int64_t>(ids.size()); ++row) {
    if (!lives[ids[row]]) continue;
    kept.ids.push_back(ids[row]);
    kept.rows.push_back(row);
    auto found = std::find(kept.kv_rows.begin(), kept.kv_rows.end(), groups[row]);
    kept.kv_map.push_back(found - kept.kv_rows.begin());
    if (found == kept.kv_rows.end()) kept.kv_rows.push_back(groups[row]);
  }
  kept.shape = shape_;
  kept.shape.heads = std::ssize(kept.rows);
  kept.shape.kv_heads = std::ssize(kept.kv_rows);
  return kept;
}

namespace {

Registry<HeadKind>& registry() {
  static Registry<HeadKind> kinds("kind of heads");
  return kinds;
}

}  // namespace

void register_heads(HeadKind kind) { registry().add(std::move(kind)); }
std::vector<std::string> head_names() { return registry().names(); }
const HeadKind& head_kind(const std::string& name) { return registry().at(name); }
const KindRegistry& head_registry() { return registry(); }

void check_layer(const KindBlock& block, const HeadShape& shape, const HeadDemands& demands,
                 const Complain& complain) {
  const auto& options = block.as<HeadOptions>();
  options.check_shape(shape, complain);
  const auto traits = options.traits();
  auto demand = [&](bool asked, bool promised, const char* what) {
    if (asked && !promised) complain("", fmt::format("'{}' heads {}", block.kind(), what));
  };
  demand(demands.causal, traits.causal, "cannot be causal");
  demand(demands.window, traits.token_map, "know no window");
  demand(demands.rotary, traits.rotary, "know no rotary positions");
  demand(demands.bias, traits.token_map, "know no bias on their scores");
  demand(demands.cross, traits.cross, "have no cross-attention");
  demand(shape.kv_heads != shape.heads, traits.grouped,
         fmt::format("are not grouped: kv_heads must be heads, {}", shape.heads).c_str());
}

std::shared_ptr<AttentionHeads> make_heads(const KindBlock& block, const HeadShape& shape,
                                           const HeadDemands& demands) {
  Problems problems;
  check_layer(block, shape, demands, [&](const std::string& field, const std::string& what) {
    problems.add(block.place(field), field.empty() ? block.path() : block.path() + "." + field,
                 what);
  });
  problems.raise();
  return head_kind(block.kind()).make(shape, block.as<HeadOptions>());
}

namespace {

Tensor head_rows(const std::vector<int64_t>& heads, int64_t width) {
  auto first = at::tensor(heads, at::kLong).mul_(width).unsqueeze(1);
  return (first + at::arange(width)).flatten();  // [heads*width]
}

}  // namespace

void copy_heads(Linear& to, const Linear& from, const std::vector<int64_t>& heads, int64_t width) {
  at::NoGradGuard no_grad;
  const auto rows = head_rows(heads, width).to(from->weight.device());
  to->weight.copy_(from->weight.index_select(0, rows));
  if (from->bias.defined()) to->bias.copy_(from->bias.index_select(0, rows));
}

void copy_head_columns(Linear& to, const Linear& from, const std::vector<int64_t>& heads,
                       int64_t width) {
  at::NoGradGuard no_grad;
  to->weight.copy_(from->weight.index_select(1, head_rows(heads, width).to(from->weight.device())));
  if (from->bias.defined()) to->bias.copy_(from->bias);
}

void keep_heads(Tensor& to, const Tensor& from, const std::vector<int64_t>& rows, int64_t dim) {
  const auto index = at::tensor(rows, at::kLong).to(from.device());
  to.set_data(from.detach().index_select(dim, index));
}

void init_normal(Linear& linear, double std) {
  at::NoGradGuard no_grad;
  linear->weight.normal_(0, std);
  if (linear->bias.defined()) linear->bias.zero_();
}

double residual_std(int64_t layers) { return 0.02 / std::sqrt(2.0 * static_cast<double>(layers)); }

}  // namespace headlab
