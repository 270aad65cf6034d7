#include "experiments/cases/layer_case.h"

#include <fmt/format.h>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/cases/case_file.h"

namespace headlab {
namespace {

struct CasePosition : Block {
  std::string kind = "none", layout = "half";
  double base = 10000, fraction = 1;
  void visit(Fields& f) override {
    f("kind", kind, "positions inside the layer", one_of({"none", "rope"}));
    f("base", base, "base of the rotation", above(1));
    f("layout", layout, "which features form a pair", one_of({"half", "interleaved"}));
    f("fraction", fraction, "share of the features that rotate", between(0, 1));
  }
};

struct CaseConfig : Block {
  int64_t d_model = 0, heads = 0;
  std::optional<int64_t> head_dim, kv_heads;
  bool causal = false;
  int64_t window = 0;
  CasePosition position;
  KindBlock attention{head_registry(), "mha"};

  void visit(Fields& f) override {
    f("d_model", d_model, "width of the layer", at_least(1));
    f("heads", heads, "query heads", at_least(1));
    f("head_dim", head_dim, "width of a head (default: d_model / heads)", at_least(1));
    f("kv_heads", kv_heads, "key/value heads (default: heads)", at_least(1));
    f("causal", causal, "a query sees no later key");
    f("window", window, "keys that a query sees; 0: all", at_least(0));
    f("position", position, "rotary positions");
    f("attention", attention, "kind of heads and its options");
  }
  void check(const Complain& complain) const override {
    if (d_model == 0) return complain("d_model", "is missing");
    if (heads == 0) return complain("heads", "is missing");
    check_heads(d_model, heads, head_dim, kv_heads, complain);
  }
  HeadDemands demands(bool bias, bool cross) const {
    return {.causal = causal,
            .window = window > 0,
            .rotary = position.kind == "rope",
            .bias = bias,
            .cross = cross};
  }
  HeadShape shape(int64_t context) const {
    HeadShape shape;
    shape.d_model = d_model;
    shape.heads = heads;
    shape.head_dim = head_dim.value_or(d_model / heads);
    shape.kv_heads = kv_heads.value_or(heads);
    shape.context = context;
    return shape;
  }
};

}  // namespace

LayerCase::LayerCase(const std::filesystem::path& path, const at::Device& device)
    : name_(path.string()) {
  std::map<std::string, std::string> metadata;
  auto tensors = read_tensors(path, &metadata);
  if (metadata["headlab_case"] != "1")
    throw DataError(name_ + ": not a layer case: its metadata has no headlab_case = 1");
  take_all(std::move(tensors), std::move(metadata), device);
}

LayerCase::LayerCase(std::string name, NamedTensors tensors,
                     std::map<std::string, std::string> metadata, const at::Device& device)
    : name_(std::move(name)) {
  take_all(std::move(tensors), std::move(metadata), device);
}

void LayerCase::take_all(NamedTensors tensors, std::map<std::string, std::string> metadata,
                         const at::Device& device) {
  if (!metadata.count("config")) throw DataError(name_ + ": the metadata has no config");
  tolerance_ = tolerance_of(metadata);
  for (auto& [name, tensor] : tensors) tensor = tensor.to(device);
  x_ = take(tensors, "in.x");
  if (!x_.defined()) throw DataError(name_ + ": in.x is missing");
  if (x_.dim() != 3 || !x_.is_floating_point())
    throw DataError(name_ + ": in.x must be floating point [B,T,D]");
  expected_ = take_expected(tensors);
  take_inputs(tensors);
  build(metadata["config"]);
  heads_->train(metadata["mode"] == "train");
  take_weights(tensors);
  for (const auto& [name, tensor] : tensors)
    throw DataError(fmt::format("{}: the layer does not know the tensor {}", name_, name));
}

void LayerCase::build(const std::string& text) {
  const auto node = parse_config(text, name_ + " (config)");
  CaseConfig config;
  read_config(config, node);
  if (memory_.defined() && (config.causal || config.window > 0))
    throw ConfigError(name_ + ": causal or window together with in.memory: their places do not " +
                      "compare");
  mask_.causal = config.causal;
  mask_.window = config.window;
  if (config.position.kind == "rope")
    rotary_.emplace(config.position.base,
                    config.position.layout == "half" ? RopeLayout::kHalf : RopeLayout::kInterleaved,
                    config.position.fraction);
  config_ = text;
  attention_ = config.attention;
  demands_ = config.demands(bias_.defined(), memory_.defined());
  heads_ =
      make_heads(attention_, config.shape((memory_.defined() ? memory_ : x_).size(1)), demands_);
  heads_->to(x_.device(), x_.scalar_type());
}

void LayerCase::take_inputs(NamedTensors& tensors) {
  memory_ = take(tensors, "in.memory");
  bias_ = take(tensors, "in.bias");
  gates_ = take(tensors, "in.gates");
  positions_ = take(tensors, "in.positions");
  noise_ = take(tensors, "in.u");
  cotangent_ = take(tensors, "cot.y");
  if (auto mask = take(tensors, "in.mask"); mask.defined()) mask_.allowed = mask.to(at::kBool);
}

void LayerCase::take_weights(NamedTensors& tensors) {
  at::NoGradGuard no_grad;
  auto fill = [&](const std::string& name, Tensor& into, bool required) {
    auto weight = take(tensors, "w." + name);
    if (!weight.defined()) {
      if (required) throw DataError(fmt::format("{}: w.{} is missing", name_, name));
      return;
    }
    if (weight.sizes() != into.sizes() || weight.scalar_type() != into.scalar_type())
      throw DataError(fmt::format("{}: w.{} is {} {}, the layer wants {} {}", name_, name,
                                  toString(weight.scalar_type()), c10::str(weight.sizes()),
                                  toString(into.scalar_type()), c10::str(into.sizes())));
    into.copy_(weight);
  };
  for (auto& item : heads_->named_parameters()) fill(item.key(), item.value(), true);
  for (auto& item : heads_->named_buffers())
    if (item.value().is_floating_point()) fill(item.key(), item.value(), false);
}

HeadContext LayerCase::context(Backend backend) const {
  HeadContext ctx;
  ctx.memory = memory_;
  ctx.mask = mask_;
  ctx.bias = bias_;
  ctx.gates = gates_;
  ctx.noise = noise_;
  ctx.positions = positions_;
  ctx.rotary = rotary_ ? &*rotary_ : nullptr;
  ctx.backend = backend;
  return ctx;
}

Tensor LayerCase::total_loss(const HeadOutput& out) const {
  auto loss = (out.y * cotangent_).sum();
  for (const auto& aux : out.aux) loss = loss + aux.value;
  return loss;
}

void LayerCase::step(bool backward, Backend backend) {
  at::AutoGradMode grad(backward && cotangent_.defined());
  auto out = heads_->forward(x_, context(backend));
  if (backward && cotangent_.defined()) total_loss(out).backward();
}

NamedTensors LayerCase::compute(const Wanted& wanted, Backend backend) {
  const bool gradients = wanted.gradients && cotangent_.defined();
  at::AutoGradMode grad(gradients);
  auto ctx = context(backend);
  HeadProbe probe;
  probe.maps = wanted.attention;
  probe.statistics = wanted.statistics;
  probe.js_stride = 1;
  if (probe.maps || probe.statistics) ctx.observer = &probe;
  auto x = x_.detach().requires_grad_(gradients);
  auto memory = memory_.defined() ? memory_.detach().requires_grad_(gradients) : Tensor();
  ctx.memory = memory;
  auto out = heads_->forward(x, ctx);

  NamedTensors computed{{"out.y", out.y}};
  if (out.gates.defined()) computed["out.gates"] = out.gates;
  if (!out.aux.empty() || expected_.count("out.aux_loss")) {
    auto sum = at::zeros({}, x.options().requires_grad(false));
    for (const auto& aux : out.aux) sum = sum + aux.value;
    computed["out.aux_loss"] = sum;
  }
  for (const auto& [layer, map] : probe.layer_maps()) computed["out.attention"] = map;
  if (wanted.statistics)
    for (const auto& [name, values] : probe.values(0)) {
      auto value = at::tensor(values, at::kDouble);
      computed["stat." + name] =
          name == "js" ? value.view({heads_->heads(), heads_->heads()}) : value;
    }
  if (gradients) {
    heads_->zero_grad();
    total_loss(out).backward();
    auto keep = [&](const std::string& name, const Tensor& of) {
      computed["grad." + name] = of.grad().defined() ? of.grad() : at::zeros_like(of);
    };
    keep("x", x);
    if (memory.defined()) keep("memory", memory);
    for (const auto& item : heads_->named_parameters()) keep("w." + item.key(), item.value());
  }
  for (auto& [name, tensor] : computed) tensor = tensor.detach().to(at::kCPU);
  return computed;
}

namespace {

const RegisterCase layer_cases({"1", [](const std::filesystem::path& path, const at::Device& device,
                                        Backend backend) {
                                  LayerCase layer(path, device);
                                  auto computed = layer.compute({}, backend);
                                  auto verdicts =
                                      judge(computed, layer.expected(), layer.tolerance());
                                  return Judged{std::move(computed), std::move(verdicts)};
                                }});

}  // namespace
}  // namespace headlab
