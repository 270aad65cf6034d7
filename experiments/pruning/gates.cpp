#include "experiments/pruning/gates.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/models/gate_decisions.h"
#include "experiments/models/gate_target.h"
#include "experiments/runs/checkpoint.h"

namespace headlab {
namespace {

constexpr const char* kGated = "gated";
constexpr const char* kLogAlpha = "gate.log_alpha";
const std::string kInner = "inner.";
constexpr int64_t kHistogramEnd = 5;

// Buffers of indices that a layer and its inner one both have.
constexpr const char* kIndices[] = {"alive", "head_ids", "kv_map"};

bool has_hard_gates(const TrainedLayer& layer) {
  return layer.attention.kind() == kGated && layer.weights.contains(kLogAlpha);
}

Conversion without_gates(const TrainedLayer& layer) {
  Conversion made;
  made.attention = layer.attention.write();
  made.kv_heads = layer.shape.kv_heads;
  made.weights = layer.weights;
  if (!has_hard_gates(layer)) return made;
  made.attention = ConfigNode(*made.attention->find("inner"));
  made.weights.clear();
  for (const auto& [name, tensor] : layer.weights)
    if (name.starts_with(kInner)) made.weights[name.substr(kInner.size())] = tensor;
  made.weights["alive"] = layer.weights.at("alive");
  return made;
}

}  // namespace

GateGrids gate_grids(Model& model) {
  GateGrids grids;
  for (const auto& site : site_heads(model)) {
    auto& log_alpha = grids.log_alpha[site.name()] = site.no_values();
    auto& test = grids.test[site.name()] = site.no_values();
    for (int64_t layer = 0; layer < site.layers(); ++layer) {
      const auto gates = site.layer(layer).learned_gates();
      if (gates.heads.empty()) continue;
      const auto ids = at::tensor(gates.heads, at::kLong);
      log_alpha[layer].index_copy_(0, ids, gates.log_alpha.to(at::kCPU, at::kDouble));
      test[layer].index_copy_(0, ids, gates.test.to(at::kCPU, at::kDouble));
    }
  }
  return grids;
}

bool has_gates(Model& model) {
  const auto grids = gate_grids(model).log_alpha;
  return std::ranges::any_of(grids, [](const auto& grid) {
    return grid.second.isnan().logical_not().any().template item<bool>();
  });
}

int64_t gone_or_shut(Model& model) {
  int64_t shut = 0;
  for (const auto& [site, test] : gate_grids(model).test) shut += (test == 0).sum().item<int64_t>();
  return built_heads(model) - alive_count(model) + shut;
}

namespace {

// The grids one behind the other, [N].
Tensor flat(const SiteGrids& grids) {
  std::vector<Tensor> all;
  for (const auto& [site, grid] : grids) all.push_back(grid.flatten());
  return at::cat(all);
}

// The heads for which `flat` [N] holds, laid out as the grids are.
std::vector<std::string> heads_named(const SiteGrids& like, const Tensor& flat) {
  SiteGrids grids;
  int64_t first = 0;
  for (const auto& [site, grid] : like) {
    grids[site] = flat.narrow(0, first, grid.numel()).view(grid.sizes());
    first += grid.numel();
  }
  return to_texts(heads_where(grids));
}

}  // namespace

nlohmann::ordered_json gate_report(Model& model, std::optional<int64_t> keep) {
  const auto decisions = gate_decisions(model);
  if (!decisions) return {};
  const auto grids = gate_grids(model);
  const auto log_alpha = flat(grids.log_alpha), test = flat(grids.test);  // [N]
  const auto there = log_alpha.isnan().logical_not();
  const auto kept = keep ? largest_heads(log_alpha, *keep) : test > 0;
  const auto names = [&](const Tensor& heads) { return heads_named(grids.test, heads); };
  const auto values = log_alpha.masked_select(there).clamp(-kHistogramEnd, kHistogramEnd);
  const auto counts = at::histc(values, 2 * kHistogramEnd, -kHistogramEnd, kHistogramEnd);
  nlohmann::ordered_json edges = nlohmann::ordered_json::array(), bins = edges;
  for (int64_t edge = -kHistogramEnd; edge <= kHistogramEnd; ++edge) edges.push_back(edge);
  for (int64_t bin = 0; bin < counts.size(0); ++bin)
    bins.push_back(static_cast<int64_t>(counts[bin].item<double>()));
  return {{"heads", decisions->heads},
          {"alive", decisions->alive},
          {"undecided", decisions->undecided},
          {"expected", decisions->expected},
          {"kept", names(kept)},
          {"shut", names(there & kept.logical_not())},
          {"log_alpha", {{"edges", edges}, {"counts", bins}}}};
}

std::string gate_text(const nlohmann::ordered_json& report) {
  std::string text =
      fmt::format("gates: {} of {} heads alive, {} undecided, {:.2f} expected open\n",
                  report["alive"].get<int64_t>(), report["heads"].get<int64_t>(),
                  report["undecided"].get<int64_t>(), report["expected"].get<double>());
  const auto& counts = report["log_alpha"]["counts"];
  for (size_t bin = 0; bin < counts.size(); ++bin) {
    if (counts[bin] == 0) continue;
    const auto& edges = report["log_alpha"]["edges"];
    text += fmt::format("log_alpha {:2} to {:2}: {} heads\n", edges[bin].get<int64_t>(),
                        edges[bin + 1].get<int64_t>(), counts[bin].get<int64_t>());
  }
  return text +
         fmt::format("kept {}\n", fmt::join(report["kept"].get<std::vector<std::string>>(), " "));
}

ConfigNode gate_options(const GateStart& start) {
  ConfigNode gates;
  gates.set("init", write_number(start.init));
  if (start.penalty >= 0) gates.set("penalty", write_number(start.penalty));
  if (start.heads == 0) return gates;
  ConfigNode target;
  target.set("heads", write_integer(start.heads));
  target.set("warmup", write_integer(start.updates / 2));
  target.set("begin", write_integer(start.begin));
  gates.set("target", target);
  // At the usual clamp a shut gate still counts as 0.02 of a head: of many heads too few stay open.
  gates.set("clamp", write_number(8));
  return gates;
}

Conversion to_gated(const TrainedLayer& layer, const ConfigNode& options) {
  if (layer.attention.kind() == kGated)
    throw ConfigError(fmt::format("{}: has gates already", layer.name));
  ConfigNode written = options;
  written.set("kind", write_text(kGated));
  written.set("inner", layer.attention.write());
  KindBlock block(head_registry(), kGated);
  Problems problems;
  block.read(written, "attention", problems);
  problems.raise();
  const auto fresh = make_heads(block, layer.shape, layer.demands);

  Conversion made;
  made.attention = block.write();
  made.kv_heads = layer.shape.kv_heads;
  for (const auto& [name, tensor] : layer.weights) made.weights[kInner + name] = tensor;
  for (const char* name : kIndices)
    if (layer.weights.contains(name)) made.weights[name] = layer.weights.at(name);
  // Masks are the outer layer's; the inner one has every head that was not sliced away.
  auto inner_alive = at::ones_like(layer.weights.at("alive"));
  auto log_alpha = module_tensors(*fresh).at(kLogAlpha).detach();  // [H]
  if (layer.weights.contains("head_ids")) {
    const auto ids = layer.weights.at("head_ids");
    inner_alive.zero_().index_fill_(0, ids, 1);
    log_alpha = log_alpha.index_select(0, ids.to(log_alpha.device()));
  }
  made.weights[kInner + "alive"] = inner_alive;
  made.weights[kLogAlpha] = log_alpha;
  return made;
}

ConvertedModel ungate(const OpenedRun& run, const at::Device& device) {
  bool any = false;
  OpenedRun trained = run;
  trained.experiment.train.gates_only = false;  // it will have none
  auto made = convert_model(
      trained,
      [&](const TrainedLayer& layer) {
        any = any || has_hard_gates(layer);
        return without_gates(layer);
      },
      device);
  if (!any) throw ConfigError("no layer has hard-concrete gates that could be taken off");
  return made;
}

OpenedRun ungated(const OpenedRun& run, const at::Device& device) {
  auto made = ungate(run, device);
  OpenedRun bare = run;
  bare.experiment = std::move(made.experiment);
  bare.model = made.model;
  return bare;
}

}  // namespace headlab
