// Files of expected numbers about pruning: importance-1,
// prune-order-1, slice-1, delta-1.
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "core/observe/probe.h"
#include "core/torch.h"
#include "experiments/cases/case_file.h"
#include "experiments/cases/layer_case.h"
#include "experiments/measuring/ablation.h"
#include "experiments/measuring/change_of_outputs.h"
#include "experiments/measuring/importance.h"
#include "experiments/pruning/prune.h"

namespace headlab {
namespace {

// The layer of a file that holds more than a layer case does.
LayerCase layer_of(const CaseFile& file, const std::vector<std::string>& others,
                   const at::Device& device) {
  auto layer = file;
  for (const auto& name : others) layer.tensors.erase(name);
  return {layer, device};
}

// L_n = sum over positions below the length of <cot.y, y>.
class ImportanceCase {
 public:
  ImportanceCase(const CaseFile& file, const at::Device& device, Backend backend)
      : layer_(layer_of(file, {"in.length", "in.batch"}, device)),
        length_(file.at("in.length").to(device)),
        batch_(file.at("in.batch").to(at::kCPU)),
        ctx_(layer_.context(backend)) {
    if (!layer_.has_cotangent()) file.refuse("cot.y is missing");
    ctx_.mask.query_length = ctx_.mask.key_length = length_;
  }

  NamedTensors compute() {
    NamedTensors computed{{"out.loss", losses(ctx_)}};
    const auto sums = importance();
    for (const auto& name : importance_reductions()) {
      const auto value = sums.reduced(name);
      computed["out.importance." + name] = value;
      computed["out.importance_normalized." + name] =
          normalized_by_layer(value.unsqueeze(0)).squeeze(0);
    }
    for (const auto& mode : ablation_modes())
      computed["out.ablation." + mode] = ablations(ablation_mode(mode));
    return computed;
  }

 private:
  Tensor losses(const HeadContext& ctx) {  // [N]
    const auto of_position =
        (layer_.heads().forward(layer_.x(), ctx).y * layer_.cotangent()).sum(-1);
    const auto real = within_length(length_, of_position.size(1), of_position.device());
    return of_position.masked_fill(real.logical_not(), 0).sum(1);
  }

  ImportanceSums importance() {
    at::AutoGradMode with_gradients(true);
    auto ctx = ctx_;
    const auto& x = layer_.x();
    ctx.gates =
        at::ones({x.size(0), layer_.heads().heads(), x.size(1)}, x.options()).requires_grad_();
    const auto c = torch::autograd::grad({losses(ctx).sum()}, {ctx.gates})[0];  // [N,H,T]
    ImportanceSums sums;
    for (int64_t b = 0; b <= batch_.max().item<int64_t>(); ++b) {
      const auto rows = (batch_ == b).nonzero().flatten().to(c.device());
      if (rows.numel() > 0) sums.add(c.index_select(0, rows), length_.index_select(0, rows));
    }
    return sums;
  }

  Tensor mean_outputs() {  // [H,1,e]
    HeadProbe probe;
    probe.head_outputs = true;
    auto ctx = ctx_;
    ctx.observer = &probe;
    layer_.heads().forward(layer_.x(), ctx);
    const auto& said = probe.layer_outputs().at(0).edited;  // [N,H,T,e]
    const auto real = within_length(length_, said.size(2), said.device()).unsqueeze(1).unsqueeze(3);
    return said.masked_fill(real.logical_not(), 0).sum(at::IntArrayRef({0, 2})).unsqueeze(1) /
           length_.sum();
  }

  Tensor ablations(AblationMode mode) {  // [H]
    const auto whole = losses(ctx_).sum();
    const int64_t H = layer_.heads().heads();
    const auto means = mean_outputs();
    auto changes = at::empty({H}, at::kDouble);
    for (int64_t h = 0; h < H; ++h) {
      auto ctx = ctx_;
      const auto gone = at::arange(H, length_.options()) == h;
      ablate_heads(ctx, gone, mode, means);
      changes[h] = (losses(ctx).sum() - whole).to(at::kCPU, at::kDouble);
    }
    return changes;
  }

  LayerCase layer_;
  Tensor length_, batch_;
  HeadContext ctx_;
};

const RegisterCase importances({"importance-1", [](const CaseFile& file, const at::Device& device,
                                                   Backend backend) {
                                  at::NoGradGuard no_grad;
                                  return judged(file,
                                                ImportanceCase(file, device, backend).compute());
                                }});

struct OrderConfig : Block {
  int64_t keep_per_layer = 0;
  void visit(Fields& f) override {
    f("keep_per_layer", keep_per_layer, "heads that every layer keeps", at_least(0));
  }
};

const RegisterCase orders("prune-order-1", [](const CaseFile& file) {
  OrderConfig config;
  file.read(config);
  const auto importance = file.at("in.importance"), steps = file.at("in.steps");
  auto alive = at::ones_like(importance, at::kBool);
  std::vector<Tensor> after;
  for (int64_t n = 0; n < steps.size(0); ++n) {
    for (const auto& id : lowest_heads({{kSelfSite, importance}}, {{kSelfSite, alive}},
                                       steps[n].item<int64_t>(), config.keep_per_layer))
      alive[id.layer][id.head] = false;
    after.push_back(alive.to(at::kByte));
  }
  return NamedTensors{{"out.alive", at::stack(after)}};
});

const RegisterCase slices(
    {"slice-1", [](const CaseFile& file, const at::Device& device, Backend backend) {
       at::NoGradGuard no_grad;
       auto layer = layer_of(file, {"in.heads"}, device);
       layer.heads().mask_heads(integers_of(file.at("in.heads")));
       const auto ctx = layer.context(backend);
       const auto masked = layer.heads().forward(layer.x(), ctx).y;
       const auto sliced = layer.heads().slice();
       NamedTensors computed{{"out.y", sliced->forward(layer.x(), ctx).y}};
       for (const auto& p : sliced->named_parameters()) computed["out.w." + p.key()] = p.value();
       for (const auto& b : sliced->named_buffers()) computed["out." + b.key()] = b.value();
       auto result = judged(file, std::move(computed));
       if (const auto y = file.expected.find("out.y"); y != file.expected.end())
         result.verdicts.push_back(judge("masked: out.y", masked, y->second, file.tolerance));
       return result;
     }});

// Paired bootstrap on the changes [N] of examples: the rows of `resample` [R,N] are those drawn.
void add_bootstrap(NamedTensors& computed, const Tensor& changes, const Tensor& resample) {
  const auto means = changes.index({resample}).mean(1);  // [R]
  const auto share = [&](const Tensor& of) { return of.to(at::kDouble).mean().item<double>(); };
  const double p = std::min(1.0, 2 * std::min(share(means <= 0), share(means >= 0)));
  computed["out.bootstrap_mean"] = means.mean();
  computed["out.p_value"] = at::scalar_tensor(p, at::kDouble);
}

const RegisterCase deltas("delta-1", [](const CaseFile& file) {
  OutputChangeSums sums(prediction_task());
  sums.add({file.at("in.y"), file.at("in.logits")},
           {file.at("in.y_ablated"), file.at("in.logits_ablated")},
           {.targets = file.at("in.targets"), .length = file.find("in.length")});
  NamedTensors computed;
  for (const auto& [name, value] : sums.values())
    computed["out." + name] = at::scalar_tensor(value, at::kDouble);
  const auto examples = at::tensor(sums.example_loss_changes(), at::kDouble);
  computed["out.example_delta"] = examples;
  if (const auto resample = file.find("in.resample"); resample.defined())
    add_bootstrap(computed, examples, resample);
  return computed;
});

}  // namespace
}  // namespace headlab
