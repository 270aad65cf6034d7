#include "experiments/cases/layer_case.h"

#include <fmt/format.h>

#include "core/attention/call/choice_observer.h"
#include "core/errors.h"
#include "core/torch.h"
#include "experiments/cases/layer_sizes.h"

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

struct CaseConfig : LayerSizes {
  bool causal = false;
  int64_t window = 0;
  CasePosition position;
  std::string offer = "none";

  void visit(Fields& f) override {
    LayerSizes::visit(f);
    f("causal", causal, "a query sees no later key");
    f("window", window, "keys that a query sees; 0: all", at_least(0));
    f("position", position, "rotary positions");
    f("offer", offer, "what the layer says to later ones", one_of({"none", "values"}));
  }
  HeadDemands demands(bool bias, bool cross) const {
    return {.causal = causal,
            .bidirectional = !causal && !cross,
            .window = window > 0,
            .rotary = position.kind == "rope",
            .bias = bias,
            .cross = cross};
  }
  HeadShape shape_in(int64_t context) const {
    auto shape = LayerSizes::shape();
    shape.context = context;
    shape.offers.first_values = offer == "values";
    return shape;
  }
};

// Keeps what queries chose, too.
struct CaseProbe : HeadProbe, ChoiceObserver {
  NamedTensors choices;
  void choice(const std::string& of, const Tensor& chosen) override { choices[of] = chosen; }
};

CaseFile of_format_1(const std::filesystem::path& path) {
  CaseFile file(path);
  if (file.metadata["headlab_case"] != "1")
    file.refuse("not a layer case: its metadata has no headlab_case = 1");
  return file;
}

Tensor joined(const Tensor& of_heads) {  // [B,H,S,e] -> [B,S,H*e]
  return of_heads.transpose(1, 2).flatten(2);
}

bool in_training(const CaseFile& file) {
  const auto mode = file.metadata.find("mode");
  if (mode == file.metadata.end() || mode->second == "eval") return false;
  if (mode->second != "train")
    file.refuse(fmt::format("metadata mode: must be train or eval, is '{}'", mode->second));
  return true;
}

}  // namespace

LayerCase::LayerCase(const std::filesystem::path& path, const at::Device& device)
    : LayerCase(of_format_1(path), device) {}

LayerCase::LayerCase(const CaseFile& file, const at::Device& device)
    : name_(file.name), tolerance_(file.tolerance), expected_(file.expected) {
  of_case(name_, [&] { take_all(file, device); });
}

void LayerCase::take_all(const CaseFile& file, const at::Device& device) {
  auto tensors = file.tensors;
  for (auto& [name, tensor] : tensors) tensor = tensor.to(device);
  config_ = file.text("config");
  file.at("in.x");
  take_inputs(tensors);
  check_inputs(file);
  build(file);
  heads_->train(in_training(file));
  take_weights(tensors);
  for (const auto& [name, tensor] : tensors)
    file.refuse("the layer does not know the tensor " + name);
}

void LayerCase::check_inputs(const CaseFile& file) const {
  if (x_.dim() != 3 || !x_.is_floating_point()) file.refuse("in.x must be floating point [B,T,D]");
  if (inputs_.memory.defined() && inputs_.memory.dim() != 3)
    file.refuse("in.memory must be [B,S,D]");
}

void LayerCase::build(const CaseFile& file) {
  CaseConfig config;
  file.read(config);
  if (x_.size(2) != config.d_model)
    file.refuse(fmt::format("in.x is {} wide, d_model {}", x_.size(2), config.d_model));
  config.check_weights(file);
  if (cotangent_.defined() && cotangent_.sizes() != x_.sizes())
    file.refuse(fmt::format("cot.y is {} {}, in.x is {}", toString(cotangent_.scalar_type()),
                            c10::str(cotangent_.sizes()), c10::str(x_.sizes())));
  if (inputs_.memory.defined() && (config.causal || config.window > 0))
    file.refuse("causal or window together with in.memory: their places do not compare");
  inputs_.mask.causal = config.causal;
  inputs_.mask.window = config.window;
  if (config.position.kind == "rope")
    rotary_.emplace(config.position.base,
                    config.position.layout == "half" ? RopeLayout::kHalf : RopeLayout::kInterleaved,
                    config.position.fraction);
  attention_ = config.attention;
  demands_ = config.demands(inputs_.bias.defined(), inputs_.memory.defined());
  auto shape = config.shape_in((inputs_.memory.defined() ? inputs_.memory : x_).size(1));
  const auto reads = attention_.as<HeadOptions>().reads();
  if ((first_values_.defined() && !reads.first_values) || (generator_.defined() && !reads.state))
    file.refuse("the layer reads nothing of an earlier one: it has no in.first_v or in.generator");
  shape.offered = {.first_values = first_values_.defined(), .state = generator_.defined()};
  heads_ = make_heads(attention_, shape, demands_);
  heads_->to(x_.device(), x_.scalar_type());
}

void LayerCase::take_inputs(NamedTensors& tensors) {
  x_ = take(tensors, "in.x");
  inputs_.memory = take(tensors, "in.memory");
  inputs_.bias = take(tensors, "in.bias");
  inputs_.gates = take(tensors, "in.gates");
  inputs_.positions = take(tensors, "in.positions");
  inputs_.noise = take(tensors, "in.u");
  first_values_ = take(tensors, "in.first_v");
  generator_ = take(tensors, "in.generator");
  first_cotangent_ = take(tensors, "cot.first_v");
  cotangent_ = take(tensors, "cot.y");
  if (auto mask = take(tensors, "in.mask"); mask.defined())
    inputs_.mask.allowed = mask.to(at::kBool);
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

HeadContext LayerCase::context(Backend backend, bool gradients) {
  auto ctx = inputs_;
  ctx.rotary = rotary_ ? &*rotary_ : nullptr;
  ctx.backend = backend;
  const auto leaf = [&](const Tensor& t) {
    return t.defined() ? t.detach().requires_grad_(gradients) : t;
  };
  link_ = {.state = leaf(generator_)};
  if (first_values_.defined())
    link_.first_values = leaf(split_heads(first_values_, heads_->shape().kv_heads));
  const auto& shape = heads_->shape();
  if (shape.offered.any() || shape.offers.any()) ctx.link = &link_;
  return ctx;
}

Tensor LayerCase::total_loss(const HeadOutput& out) const {
  auto loss = (out.y * cotangent_).sum();
  if (first_cotangent_.defined())
    loss = loss + (joined(link_.first_values) * first_cotangent_).sum();
  for (const auto& aux : out.aux) loss = loss + aux.value;
  return loss;
}

void LayerCase::step(bool backward, Backend backend) {
  at::AutoGradMode grad(backward && cotangent_.defined());
  auto out = heads_->forward(x_, context(backend));
  if (backward && cotangent_.defined()) total_loss(out).backward();
}

NamedTensors LayerCase::compute(const Wanted& wanted, Backend backend) {
  return of_case(name_, [&] { return computed(wanted, backend); });
}

NamedTensors LayerCase::computed(const Wanted& wanted, Backend backend) {
  const bool gradients = wanted.gradients && cotangent_.defined();
  at::AutoGradMode grad(gradients);
  auto ctx = context(backend, gradients);
  CaseProbe probe;
  probe.maps = wanted.attention;
  probe.statistics = wanted.statistics;
  probe.js_stride = 1;
  if (probe.maps || probe.statistics) ctx.observer = &probe;
  auto x = x_.detach().requires_grad_(gradients);
  auto memory =
      inputs_.memory.defined() ? inputs_.memory.detach().requires_grad_(gradients) : Tensor();
  ctx.memory = memory;
  auto out = heads_->forward(x, ctx);

  NamedTensors computed{{"out.y", out.y}};
  if (out.gates.defined()) computed["out.gates"] = out.gates;
  if (heads_->shape().offers.first_values) computed["out.first_v"] = joined(link_.first_values);
  if (!out.aux.empty() || expected_.count("out.aux_loss")) {
    auto sum = at::zeros({}, x.options().requires_grad(false));
    for (const auto& aux : out.aux) sum = sum + aux.value;
    computed["out.aux_loss"] = sum;
  }
  for (const auto& [of, map] : probe.layer_maps())
    if (of.map == 0) computed["out.attention"] = map;
  for (const auto& [of, chosen] : probe.choices) computed["out." + of] = chosen;
  if (wanted.statistics) {
    for (const auto& [name, values] : probe.values(0)) {
      auto value = at::tensor(values, at::kDouble);
      computed["stat." + name] =
          name == "js" ? value.view({heads_->heads(), heads_->heads()}) : value;
    }
    for (const auto& own : heads_->statistics())
      if (own.per == Per::kExpert) {
        auto& value = computed.at("stat." + std::string(own.name));
        value = value.view({heads_->heads(), own.experts});
      }
  }
  if (gradients) {
    heads_->zero_grad();
    total_loss(out).backward();
    auto keep = [&](const std::string& name, const Tensor& of) {
      computed["grad." + name] = of.grad().defined() ? of.grad() : at::zeros_like(of);
    };
    keep("x", x);
    if (memory.defined()) keep("memory", memory);
    if (generator_.defined()) keep("generator", link_.state);
    if (first_values_.defined()) {
      keep("first_v", link_.first_values);
      computed["grad.first_v"] = joined(computed["grad.first_v"]);
    }
    for (const auto& item : heads_->named_parameters()) keep("w." + item.key(), item.value());
  }
  for (auto& [name, tensor] : computed) tensor = tensor.detach().to(at::kCPU);
  return computed;
}

namespace {

const RegisterCase layer_cases({"1", [](const CaseFile& file, const at::Device& device,
                                        Backend backend) {
                                  return judged(file, LayerCase(file, device).compute({}, backend));
                                }});

}  // namespace
}  // namespace headlab
