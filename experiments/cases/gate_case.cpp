// Files of expected numbers for gates that aim at a number of heads: gate-target-1 and subset-1.
#include "core/torch.h"
#include "experiments/analysis/published_gates.h"
#include "experiments/cases/case_file.h"
#include "experiments/models/gate_target.h"

namespace headlab {
namespace {

struct TargetConfig : Block {
  HardConcrete gate;
  std::string scope = "model";
  double target_sparsity = 0, start_sparsity = 0;
  int64_t warmup = 0;

  void visit(Fields& f) override {
    f("temperature", gate.temperature, "of the gates", above(0));
    f("gamma", gate.gamma, "lower end of the stretched interval");
    f("zeta", gate.zeta, "its upper end", above(1));
    f("eps", gate.eps, "distance of p_open from 0 and 1", at_least(0));
    f("scope", scope, "one sparsity, or one a layer", one_of({"model", "layer"}));
    f("target_sparsity", target_sparsity, "at the end", between(0, 1));
    f("start_sparsity", start_sparsity, "at step 0", between(0, 1));
    f("warmup", warmup, "steps of the rise", at_least(0));
  }
  void check(const Complain& complain) const override {
    if (gate.gamma >= 0) complain("gamma", "must be below 0");
  }
};

struct SubsetConfig : Block {
  int64_t k = 1;
  double temperature = 1;
  void visit(Fields& f) override {
    f("k", k, "heads in the subset", at_least(1));
    f("temperature", temperature, "of the soft draws", above(0));
  }
};

void require(const CaseFile& file, bool holds, const char* what) {
  if (!holds) file.refuse(what);
}

// A leaf of its own, in float64.
Tensor variable(const CaseFile& file, const char* name) {
  return file.at(name).to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
}

NamedTensors target_case(const CaseFile& file) {
  const at::AutoGradMode with_gradients(true);
  TargetConfig config;
  file.read(config);
  const auto log_alpha = variable(file, "in.log_alpha");
  const auto lambda1 = variable(file, "in.lambda1"), lambda2 = variable(file, "in.lambda2");
  require(file, log_alpha.dim() == 2 && log_alpha.numel() > 0, "in.log_alpha must be [L,H]");
  require(file, lambda1.dim() == 0 && lambda2.dim() == 0, "multipliers must be scalars");
  require(file, file.at("in.step").numel() == 1, "in.step must be a scalar");

  const double target =
      rising_sparsity(config.start_sparsity, config.target_sparsity, config.warmup,
                      file.at("in.step").to(at::kLong).item<int64_t>());
  const auto asked = at::full({1}, target, at::kDouble);
  const auto sparsity =
      expected_sparsity(p_open(log_alpha, config.gate).unbind(0), config.scope == "layer");
  const auto loss = lagrangian(sparsity, asked, lambda1, lambda2);
  loss.backward();
  return {{"out.loss", loss.detach()},
          {"out.expected_sparsity", sparsity.detach()},
          {"out.target_sparsity", asked[0]},
          {"out.mask", published_mask(log_alpha.detach(), config.gate)},
          {"grad.log_alpha", log_alpha.grad()},
          {"grad.lambda1", lambda1.grad()},
          {"grad.lambda2", lambda2.grad()}};
}

NamedTensors subset_case(const CaseFile& file) {
  const at::AutoGradMode with_gradients(true);
  SubsetConfig config;
  file.read(config);
  const auto weight = variable(file, "in.weight");
  const auto u = file.at("in.u").to(at::kDouble), cotangent = file.at("cot.gates").to(at::kDouble);
  require(file, weight.dim() == 1 && u.sizes() == weight.sizes(), "in.weight and in.u must be [n]");
  require(file, cotangent.sizes() == weight.sizes(), "cot.gates must be as in.weight");
  require(file, config.k <= weight.size(0), "k must be at most n");

  const auto gates = subset_gates(weight, u, config.k, config.temperature);
  (gates * cotangent).sum().backward();
  return {{"out.gates", gates.detach()},
          {"grad.weight", weight.grad()},
          {"out.straight_through", straight_through_subset(weight.detach(), config.k)}};
}

const RegisterCase targets("gate-target-1", target_case);
const RegisterCase subsets("subset-1", subset_case);

}  // namespace
}  // namespace headlab
