#include "experiments/models/intermediates.h"

#include <fmt/format.h>

#include "core/torch.h"
#include "experiments/models/site_probes.h"

namespace headlab {

Intermediates intermediates(Model& model, const Batch& batch, Backend backend) {
  HiddenStates hidden;
  std::map<std::string, Tensor> normed;
  SiteProbes probes(model, [](HeadProbe& probe) { probe.maps = true; });
  ModelContext ctx{.observer = &probes, .backend = backend};
  ctx.hidden = &hidden, ctx.normed = &normed;
  Intermediates made{.output = model.forward(batch, ctx), .tensors = {}};
  auto& named = made.tensors;
  named[model.predicts() ? "out.logits" : "out.embedding"] = made.output.logits;
  const auto out_of = [](const std::string& part) { return part.empty() ? "out" : "out." + part; };
  for (const auto& [stack, states] : hidden)
    for (size_t l = 0; l < states.size(); ++l)
      named[fmt::format("{}.hidden.{}", out_of(stack), l)] = states[l];
  for (const auto& [stack, states] : normed) named[out_of(stack) + ".final"] = states;
  for (const auto& site : model.sites())
    for (const auto& [key, map] : probes.at(site.name).layer_maps())
      named[fmt::format("{}.attention.{}",
                        out_of(site.keys == site.queries ? site.stack : site.name), key.layer)] =
          map;
  return made;
}

}  // namespace headlab
