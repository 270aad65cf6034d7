#include "core/heads.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>

#include "core/attention/call/observer.h"
#include "core/attention/maps/map.h"
#include "core/gate_target.h"
#include "core/head_kinds.h"
#include "core/torch.h"

namespace headlab {

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

// first, first + 1, ... [count], int64. at::arange alone would be a fortieth of a decoded token.
Tensor counted_from(int64_t first, int64_t count, c10::Device device) {
  const auto options = at::TensorOptions(at::kLong).device(device);
  if (!device.is_cpu()) return at::arange(first, first + count, options);
  auto numbers = at::empty({count}, options);
  std::iota(numbers.mutable_data_ptr<int64_t>(), numbers.mutable_data_ptr<int64_t>() + count,
            first);
  return numbers;
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

}  // namespace

std::vector<int64_t> to_vector(const Tensor& integers) {
  const auto cpu = integers.to(at::kCPU, at::kLong).contiguous();
  return {cpu.data_ptr<int64_t>(), cpu.data_ptr<int64_t>() + cpu.numel()};
}

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
  TORCH_CHECK(promises.bidirectional || ctx.mask.causal, "this kind must be causal");
  const char* why_not = map_->cannot_decode();
  TORCH_CHECK(!ctx.cache || !why_not, "this map cannot decode with a cache: ", why_not);
  TORCH_CHECK(promises.decodes || !ctx.cache, "this kind cannot decode with a cache");
  TORCH_CHECK(promises.rotary || !ctx.rotary, "this kind has no rotary positions");
  if (ctx.inputs) check_inputs(x, ctx);
  TORCH_CHECK(ctx.mask.window >= 0, "window must be at least 0, is ", ctx.mask.window);
  TORCH_CHECK(promises.windows || ctx.mask.window == 0, "this kind has no windows");
  TORCH_CHECK(promises.biases || (!ctx.bias.defined() && !ctx.position_bias),
              "this kind has no bias on its scores");
  TORCH_CHECK(promises.masks == HeadMasks::kAny || is_key_mask(ctx.mask.allowed),
              "this kind's mask hides keys from all queries alike: [B,1,1,S]");
  const int64_t past = ctx.cache && !cross ? ctx.cache->length() : 0;
  const int64_t S = cross ? ctx.memory.size(1) : past + T;
  const auto fits = [](const Tensor& t, const char* name, const char* axes,
                       const std::vector<int64_t>& target) {
    TORCH_CHECK(!t.defined() || broadcasts(t.sizes(), target), name, " ", t.sizes(),
                " does not broadcast to ", axes, " = ", target);
  };
  const auto lists = [](const Tensor& t, const char* name, int64_t length, const char* are) {
    TORCH_CHECK(!t.defined() || (t.dim() == 1 && t.size(0) == length), name, " must be ", "[",
                length, "], ", are, " ", t.sizes());
  };
  const auto& [allowed, uniform] = std::tie(ctx.mask.allowed, ctx.uniform);
  TORCH_CHECK(!allowed.defined() || allowed.scalar_type() == at::kBool,
              "mask.allowed must be bool");
  TORCH_CHECK(!uniform.defined() || uniform.scalar_type() == at::kBool, "uniform must be bool");
  fits(allowed, "mask.allowed", "[B,H,T,S]", {B, H, T, S});
  fits(ctx.bias, "bias", "[B,H,T,S]", {B, H, T, S});
  fits(ctx.offset, "offset", "[B,H,T,e]", {B, H, T, value_width()});
  lists(ctx.noise, "noise", H, "is");
  lists(uniform, "uniform", H, "is");
  lists(ctx.mask.query_length, "query_length", B, "is");
  lists(ctx.mask.key_length, "key_length", B, "is");
  const auto& places = ctx.positions;
  TORCH_CHECK(!places.defined() || places.sizes() == at::IntArrayRef({T}) ||
                  places.sizes() == at::IntArrayRef({B, T}),
              "positions must be [", T, "] or [", B, ", ", T, "], are ", places.sizes());
  if (ctx.gates.defined())
    TORCH_CHECK(broadcasts(ctx.gates.sizes(), {B, H, T}) ||
                    (ctx.gates.dim() == 4 && broadcasts(ctx.gates.sizes().slice(0, 3), {B, H, T})),
                "gates ", ctx.gates.sizes(),
                " do not broadcast to [B,H,T] = ", std::vector<int64_t>{B, H, T}, " or [B,H,T,e]");
}

void AttentionHeads::check_inputs(const Tensor& x, const HeadContext& ctx) const {
  TORCH_CHECK(traits_.inputs, "'", kind_, "' heads cannot read inputs of their own");
  TORCH_CHECK(!ctx.cache, "inputs of a head's own and a cache do not go together");
  const auto check = [&](const Tensor& copy, const Tensor& of) {
    TORCH_CHECK(copy.sizes() == of.sizes(), "the copy of an input must be ", of.sizes(), ", is ",
                copy.sizes());
  };
  const auto& source = ctx.memory.defined() ? ctx.memory : x;
  for (const auto* copies : {&ctx.inputs->q, &ctx.inputs->k, &ctx.inputs->v})
    for (const auto& [head, copy] : *copies) {
      TORCH_CHECK(head >= 0 && head < heads(), "head ", head,
                  " does not exist: the layer has heads ", "0 to ", heads() - 1);
      check(copy, copies == &ctx.inputs->q ? x : source);
    }
  if (ctx.inputs->rest.defined()) check(ctx.inputs->rest, x);
  if (ctx.inputs->rest_of_memory.defined()) check(ctx.inputs->rest_of_memory, source);
}

void AttentionHeads::select_own_heads(HeadCall& call) const {
  const auto& ids = head_ids_;
  call.head_ids = ids;
  // Elsewhere head h has its own keys and values, unless the layer offers those of all.
  if (traits_.grouped || shape_.kv_heads != shape_.heads) call.kv_map = kv_map_;
  call.mask.allowed = select_heads(call.mask.allowed, ids, 3);
  call.bias = select_heads(call.bias, ids, 3);
  call.noise = select_heads(call.noise, ids, 1);
  call.alive = select_heads(call.alive, ids, 1);
  call.uniform = select_heads(call.uniform, ids, 1);
  call.offset = select_heads(call.offset, ids, 3);
  call.gates = select_heads(call.gates, ids, call.gates.defined() && call.gates.dim() == 4 ? 3 : 2);
}

HeadOutput AttentionHeads::forward(const Tensor& x, HeadContext ctx) {
  check(x, ctx);
  HeadCall call(ctx);
  const int64_t T = x.size(1);
  if (!call.positions.defined()) {
    const int64_t past = call.cache ? call.cache->length() : 0;
    call.positions = counted_from(past, T, x.device());
  }
  call.rng.layer = shape_.layer;
  call.rng.site = CounterRng::site_key(shape_.site);
  call.dropout = is_training() ? shape_.dropout : 0;
  if (call.dropout > 0) call.rng = call.rng.seeded();  // all that is dropped in a pass agrees
  call.map = map();
  const auto is_alive = alive();
  const auto ids = head_ids();
  if (std::any_of(ids.begin(), ids.end(), [&](int64_t h) { return !is_alive[h]; })) {
    // For heads that do not talk to each other absence is an output gate of 0.
    const auto there = alive_.to(x.scalar_type());
    call.alive = alive_.to(at::kBool);  // [H]
    call.gates = multiply_gates(call.gates, there.view({1, -1, 1}));
    if (call.offset.defined()) call.offset = call.offset * there.view({-1, 1, 1});
  }
  if (call.bias.defined()) call.bias = uniform_scores(call.bias, call);
  if (head_ids_.defined()) select_own_heads(call);
  if (call.inputs && !(call.inputs->k.empty() && call.inputs->v.empty()) && traits_.grouped)
    call.kv_map = at::arange(std::ssize(ids), call.positions.options());        // each head its own
  if (head_ids_.defined() && ids.empty()) call.gates = call.offset = Tensor();  // nothing is said
  if (call.observer)
    call.observer->enter({.site = shape_.site,
                          .layer = shape_.layer,
                          .heads = heads(),
                          .head_ids = ids,
                          .alive = is_alive,
                          .output_weight = output_weight(),
                          .own = statistics(),
                          .map = traits_.map});
  auto out = compute(x, call);
  if (call.cache) call.cache->advance(T);
  if (call.alive.defined() && out.gates.defined()) {
    const auto dead = call.alive.logical_not();  // [H]
    out.gates = out.gates.masked_fill(out.gates.dim() == 4 ? dead.unsqueeze(1) : dead, 0);
  }
  if (head_ids_.defined() && out.gates.defined()) {
    auto sizes = out.gates.sizes().vec();
    sizes[2] = heads();
    out.gates = out.gates.new_zeros(sizes).index_copy(2, head_ids_, out.gates);  // H original
  }
  return out;
}

void AttentionHeads::check_shaping(const Shaping& shaping) const {
  TORCH_CHECK(traits_.plain_projections || !shaping.projections(), "'", kind_,
              "' heads have no plain projections of queries, keys and values to shape");
  TORCH_CHECK(traits_.own_values || !shaping.exclusion.defined(), "'", kind_,
              "' heads have no value of each token to take out");
}

Tensor AttentionHeads::from_inputs(Input input, const Tensor& x, const HeadCall& call,
                                   const std::function<Tensor(const Tensor&)>& make) const {
  const auto* in = call.inputs;
  const bool of_queries = input == Input::kQuery;
  if (!in || (of_queries ? in->q.empty() : in->k.empty() && in->v.empty())) return make(x);
  const auto& copies = of_queries ? in->q : input == Input::kKey ? in->k : in->v;
  const auto ids = head_ids();
  auto rows = group_rows(kKvHeads);
  if (of_queries) std::iota(rows.begin(), rows.end(), 0);
  Tensor plain;
  std::vector<Tensor> heads;
  for (size_t h = 0; h < ids.size(); ++h) {
    const auto copy = copies.find(ids[h]);
    if (copy == copies.end() && !plain.defined()) plain = make(x);
    const auto made = copy == copies.end() ? plain : make(copy->second);
    const int64_t maps = made.size(1) / (of_queries ? shape_.heads : shape_.kv_heads);
    heads.push_back(made.narrow(1, rows[h] * maps, maps));
  }
  return heads.empty() ? make(x) : at::cat(heads, 1);
}

Tensor AttentionHeads::output(const Tensor& o, const HeadCall& call) {
  return o_(merge_heads(o, call));
}

Tensor AttentionHeads::output(const Tensor& o, const Tensor& v, const HeadCall& call) {
  return output(exclude_own(o, v, call), call);
}

const Tensor& AttentionHeads::linked(const HeadCall& call, Tensor LayerLink::*part) const {
  TORCH_CHECK(call.link && (call.link->*part).defined(), "layer ", shape_.layer, " of '",
              shape_.site, "' reads of the link what no layer before it has offered");
  return call.link->*part;
}

Tensor AttentionHeads::output_weight() const { return o_ ? o_->weight : Tensor(); }
LearnedGates AttentionHeads::learned_gates() const { return {}; }

double AttentionHeads::flops_of_pair() const { return std::numeric_limits<double>::quiet_NaN(); }

double AttentionHeads::flops(int64_t T, int64_t S, double pairs) const {
  double sum = pairs * flops_of_pair();
  for (const auto& p : named_parameters())
    if (!is_inner(p.key())) sum += registered_flops(p.key(), p.value(), T, S, pairs);
  return sum;
}

double AttentionHeads::registered_flops(const std::string& name, const Tensor& parameter, int64_t T,
                                        int64_t S, double pairs) const {
  if (parameter.dim() == 1) return 0;
  const auto numel = 2 * static_cast<double>(parameter.numel());
  const auto found = axes_.find(name);
  if (found == axes_.end()) return std::numeric_limits<double>::quiet_NaN();
  const auto& axes = found->second;
  if (projections_.contains(name)) {
    const bool of_keys = std::any_of(axes.begin(), axes.end(),
                                     [](const HeadAxis& axis) { return axis.group == kKvHeads; });
    return numel * static_cast<double>(of_keys ? S : T);
  }
  const bool mixes = parameter.dim() == 2 && axes.size() == 2;
  return mixes ? numel * pairs : std::numeric_limits<double>::quiet_NaN();
}

std::vector<int64_t> AttentionHeads::HostCopy::read(const Tensor& t) {
  const std::lock_guard lock(mutex_);
  if (const int64_t now = t._version(); now != version_) {
    values_ = to_vector(t);
    version_ = now;
  }
  return values_;
}

std::vector<int64_t> AttentionHeads::head_ids() const {
  if (head_ids_.defined()) return head_ids_on_host_.read(head_ids_);
  std::vector<int64_t> ids(heads());
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

std::vector<bool> AttentionHeads::alive() const {
  const auto alive = alive_on_host_.read(alive_);
  return {alive.begin(), alive.end()};
}

void AttentionHeads::mask_heads(const std::vector<int64_t>& masked) {
  auto kept = at::zeros({heads()}, at::kByte);
  for (int64_t h : head_ids()) kept[h] = 1;
  for (int64_t h : masked) {
    TORCH_CHECK(h >= 0 && h < heads(), "head ", h, " does not exist: the layer has heads 0 to ",
                heads() - 1);
    kept[h] = 0;
  }
  at::NoGradGuard no_grad;
  alive_.copy_(kept);
}

Tensor AttentionHeads::index_buffer(const char* name, const Tensor& indices) {
  const auto buffer = register_buffer(name, indices);
  indices_[name] = {buffer, indices.scalar_type()};
  return buffer;
}

void AttentionHeads::restore_indices() {
  for (auto& [name, index] : indices_) index.first.set_data(index.first.to(index.second));
}

void AttentionHeads::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  Module::to(device, dtype, non_blocking);
  restore_indices();
}

void AttentionHeads::to(torch::Dtype dtype, bool non_blocking) {
  Module::to(dtype, non_blocking);
  restore_indices();
}

void AttentionHeads::set_map(const MapOptions& options) {
  map_ = options.map();
  map_kind_ = options.kind;
  if (const auto learned = options.learned(shape_.heads))
    learned_of_map_ = parameter(learned->name, learned->start, heads_along({0}));
}

void AttentionHeads::after_step() {
  if (!learned_of_map_.defined()) return;
  at::NoGradGuard no_grad;
  map_->after_step(learned_of_map_);
}

MapPtr AttentionHeads::map() const {
  return learned_of_map_.defined() ? map_->with_learned(widened(learned_of_map_)) : map_;
}

std::vector<Statistic> AttentionHeads::statistics() const {
  auto all = own_statistics();
  const auto of_map = map_statistics(*map());
  all.insert(all.end(), of_map.begin(), of_map.end());
  return all;
}

}  // namespace headlab
