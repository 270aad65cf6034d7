// `headlab forward RUN IN --out OUT`: a whole model on given inputs, every intermediate named.
#include <fmt/format.h>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/models/site_probes.h"
#include "experiments/runs/open_run.h"

namespace headlab {
namespace {

struct ForwardOptions {
  std::string run, in, out;
  ComputeOptions compute;
  bool gradients = false;

  void visit(Arguments& a) {
    a.run("run", run);
    a.option("inputs", in, "safetensors with in.ids [B,T], maybe in.targets", Arguments::kRequired);
    a.option("--out", out, "safetensors to write", Arguments::kRequired);
    a.flag("--gradients", gradients, "also grad.<parameter> of the loss");
    compute.visit(a);
  }
};

Tensor input(const NamedTensors& tensors, const std::string& name, const ForwardOptions& o,
             const at::Device& device) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) return {};
  if (found->second.dim() != 2 || !at::isIntegralType(found->second.scalar_type(), false))
    throw DataError(fmt::format("{}: {} must be integers [B,T]", o.in, name));
  return found->second.to(device, at::kLong);
}

int run_forward(const ForwardOptions& o) {
  const auto compute = o.compute.apply();
  auto opened = open_named_run(o.run, compute.device);
  const auto tensors = read_tensors(o.in);
  const auto ids = input(tensors, "in.ids", o, compute.device);
  const auto targets = input(tensors, "in.targets", o, compute.device);
  if (!ids.defined()) throw DataError(o.in + ": in.ids is missing");
  if (targets.defined() && targets.sizes() != ids.sizes())
    throw DataError(o.in + ": in.targets must have the shape of in.ids");
  if (o.gradients && !targets.defined())
    throw DataError(o.in + ": --gradients needs in.targets (negative: not scored)");
  const int64_t V = opened.data_description.shape.vocabulary;
  if (ids.numel() > 0 && (ids.min().item<int64_t>() < 0 || ids.max().item<int64_t>() >= V))
    throw DataError(fmt::format("{}: in.ids must lie in 0 .. {}", o.in, V - 1));

  if (ids.size(1) > opened.model->context())
    throw DataError(fmt::format("{}: in.ids has {} places, the model's context is {}; cut it", o.in,
                                ids.size(1), opened.model->context()));

  at::AutoGradMode grad(o.gradients);
  HiddenStates hidden;
  SiteProbes probes(*opened.model, [](HeadProbe& probe) { probe.maps = true; });
  ModelContext ctx;
  ctx.backend = compute.backend;
  ctx.observer = &probes;
  ctx.hidden = &hidden;
  const auto out = opened.model->forward({ids}, ctx);
  NamedTensors computed{{"out.logits", out.logits}};
  const auto out_of = [](const std::string& part) { return part.empty() ? "out" : "out." + part; };
  for (const auto& [stack, states] : hidden)
    for (size_t l = 0; l < states.size(); ++l)
      computed[fmt::format("{}.hidden.{}", out_of(stack), l)] = states[l];
  for (const auto& site : opened.model->sites())
    for (const auto& [key, map] : probes.at(site.name).layer_maps())
      computed[fmt::format("{}.attention.{}",
                           out_of(site.keys == site.queries ? site.stack : site.name), key.layer)] =
          map;
  if (targets.defined()) {
    const auto scored = scored_targets(targets).clamp_min(1);
    auto loss = cross_entropy_sum(out.logits, targets) / scored;
    computed["out.loss"] = loss;
    if (o.gradients) {
      for (const auto& aux : out.aux) loss = loss + aux.value;
      loss.backward();
      for (const auto& p : opened.model->named_parameters())
        if (p.value().grad().defined()) computed["grad." + p.key()] = p.value().grad();
    }
  }
  for (auto& [name, tensor] : computed) tensor = tensor.detach();
  write_tensors(o.out, computed);
  if (computed.count("out.loss")) fmt::print("loss {:.6f}\n", computed["out.loss"].item<double>());
  fmt::print("{} tensors in {}\n", computed.size(), o.out);
  return kDone;
}

const RegisterCommand forward_command(
    {.name = "forward",
     .summary = "run a trained model on given inputs and write every intermediate",
     .example = "headlab forward runs/char_mha/0123abcd-s1337 in.safetensors --out out.safetensors",
     .group = Group::kLook},
    run_forward);

}  // namespace
}  // namespace headlab
