#include "experiments/analysis/analysis.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/torch.h"
#include "experiments/analysis/analysis_parts.h"
#include "experiments/analysis/map_file.h"
#include "experiments/analysis/result_grid.h"
#include "experiments/models/head_grid.h"
#include "experiments/system/progress.h"
#include "experiments/training/evaluate.h"

namespace headlab {
namespace {

constexpr const char* kGroup = "analysis/self";

std::vector<std::unique_ptr<AnalysisPart>> analysis_parts(const AnalysisSetup& setup) {
  std::vector<std::unique_ptr<AnalysisPart>> parts;
  parts.push_back(streamed_part(setup));
  parts.push_back(map_part(setup));
  parts.push_back(outputs_part(setup));
  parts.push_back(circuits_part(setup));
  parts.push_back(importance_part(setup));
  parts.push_back(repeated_tokens_part(setup));
  if (!setup.options.treebank.empty()) parts.push_back(syntax_part(setup));
  return parts;
}

bool holds(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Which of these arrays are wanted.
std::vector<std::string> wanted_of(const std::vector<std::string>& names,
                                   const std::vector<std::string>& on_request,
                                   const AnalysisOptions& options) {
  std::vector<std::string> wanted;
  for (const auto& name : names) {
    const bool usual = options.names.empty() && !holds(on_request, name);
    if (usual || holds(options.names, "all") || holds(options.names, name)) wanted.push_back(name);
  }
  return wanted;
}

void check_names(const AnalysisOptions& options, std::vector<std::string> known) {
  known.push_back("all");
  for (const auto& name : options.names)
    if (!holds(known, name))
      throw ConfigError(fmt::format("--stats {}: there is no such statistic here{}", name,
                                    did_you_mean(name, known)));
}

// What the roles read: arrays by head. On the data of a run a repeated token says little of what a
// head does, so that induction and duplicate are those on random tokens, where a part made them.
std::map<std::string, std::vector<double>> role_values(const ResultGroup& statistics,
                                                       bool of_model) {
  std::map<std::string, std::vector<double>> values;
  for (const auto& array : statistics.arrays)
    if (array.dims == std::vector<std::string>{"layer", "head"})
      values[array.about.name] = array.values;
  if (!of_model) return values;
  for (const auto& [from, to] : {std::pair{"induction_repeated", "induction"},
                                 std::pair{"duplicate_token_repeated", "duplicate_token"}}) {
    values.erase(to);
    if (values.count(from)) values[to] = values.at(from);
  }
  return values;
}

// Completes an analysis whose arrays are all there.
void add_roles(Analysis& to, const AnalysisOptions& options, bool of_model) {
  to.roles.path = "roles/self";
  add_head_axes(to.roles, {"layer", "head"}, to.layers, to.heads);
  const auto roles = head_roles(role_values(to.statistics, of_model), options.rules);
  for (const auto& rule : options.rules) {
    const auto found = roles.find(rule.name);
    if (found == roles.end()) continue;
    to.roles.arrays.push_back({{rule.name, "1", rule.long_name, rule.formula()},
                               {"layer", "head"},
                               {found->second.begin(), found->second.end()},
                               /*flags=*/true,
                               {{"threshold", rule.threshold}}});
  }
}

// These arrays, and the axes that they have.
void keep_arrays(ResultGroup& group, const std::vector<std::string>& names) {
  std::erase_if(group.arrays, [&](const auto& array) { return !holds(names, array.about.name); });
  std::erase_if(group.axes, [&](const auto& axis) {
    return std::none_of(group.arrays.begin(), group.arrays.end(),
                        [&](const auto& array) { return holds(array.dims, axis.about.name); });
  });
}

void add_head_mask(ResultGroup& group, const Tensor& alive) {
  group.arrays.push_back(
      {{"head_mask", "1", "whether the head is there", "1 alive, 0 pruned or never built"},
       {"layer", "head"},
       numbers(alive),
       /*flags=*/true});
}

// Examples that go through the model at once: their maps stay within a quarter of a gigabyte.
int64_t examples_at_once(const AnalysisSetup& setup, int64_t context, bool keeps_maps) {
  constexpr int64_t kMapBytes = int64_t{256} << 20;
  if (!keeps_maps) return setup.options.batch;
  const int64_t of_example = setup.layers * setup.heads * context * context * 4;
  return std::clamp<int64_t>(kMapBytes / std::max<int64_t>(1, of_example), 1, setup.options.batch);
}

struct Wanted {
  std::unique_ptr<AnalysisPart> part;
  std::vector<std::string> names;
};

// All batches, through the model once.
int64_t go_over(const AnalysisSetup& setup, std::vector<Wanted>& parts, HeadProbe& probe) {
  const auto& options = setup.options;
  const auto& data = *setup.run.data;
  int64_t examples = data.examples(options.split);
  if (options.batches > 0) examples = std::min(examples, options.batches * options.batch);
  const int64_t at_once = examples_at_once(setup, data.context(), probe.patterns);
  Progress progress(0, examples, at_once);
  at::NoGradGuard no_grad;
  for (int64_t first = 0; first < examples; first += at_once) {
    const auto batch = data.eval_batch(options.split, first, std::min(at_once, examples - first));
    std::vector<Tensor> hidden;
    ModelContext ctx;
    ctx.backend = options.backend;
    ctx.observer = &probe;
    ctx.hidden = &hidden;
    const auto on_device = batch.to(setup.device);
    probe.tokens = on_device.ids;
    const auto out = setup.run.model->forward(on_device, ctx);
    for (auto& [part, names] : parts) part->add({batch, first, probe, hidden, out});
    progress.step(first + batch.examples(), batch.tokens());
  }
  progress.finish();
  return examples;
}

}  // namespace

const ResultArray* find_array(const ResultGroup& group, const std::string& name) {
  for (const auto& array : group.arrays)
    if (array.about.name == name) return &array;
  return nullptr;
}

LogVariable variable_of(const Statistic& s) { return {s.name, s.units, s.long_name, s.formula}; }

Analysis analyze_run(OpenedRun& run, const AnalysisOptions& options, const at::Device& device) {
  const auto alive = alive_heads(*run.model);
  const AnalysisSetup setup{.run = run,
                            .options = options,
                            .device = device,
                            .layers = alive.size(0),
                            .heads = alive.size(1),
                            .alive = alive,
                            .heads_of = attention_layers(*run.model)};
  std::vector<Wanted> parts;
  std::vector<std::string> known;
  for (auto& part : analysis_parts(setup)) {
    const auto names = part->names();
    known.insert(known.end(), names.begin(), names.end());
    auto wanted = wanted_of(names, part->on_request(), options);
    if (!wanted.empty()) parts.push_back({std::move(part), std::move(wanted)});
  }
  check_names(options, known);
  HeadProbe probe;
  for (auto& [part, names] : parts) part->start(names, probe);
  run.model->eval();
  Analysis result{.layers = setup.layers, .heads = setup.heads};
  result.examples = go_over(setup, parts, probe);
  auto& group = result.statistics;
  group.path = kGroup;
  add_head_axes(group, {"layer", "head"}, setup.layers, setup.heads);
  add_head_mask(group, alive);
  std::vector<std::string> kept{"head_mask"};
  for (auto& [part, names] : parts) {
    part->finish(group);
    kept.insert(kept.end(), names.begin(), names.end());
  }
  add_roles(result, options, /*of_model=*/true);
  keep_arrays(group, kept);
  return result;
}

Analysis analyze_maps(const MapFile& file, const AnalysisOptions& options) {
  const int64_t L = std::ssize(file.layers), H = file.heads;
  auto names = file.statistics();
  names.insert(names.end(), {"similarity", "head_map"});
  if (options.maps > 0)
    for (const auto& name : KeptMaps::names()) names.push_back(name);
  check_names(options, names);
  const auto wanted = wanted_of(names, {"js_clark"}, options);
  Analysis result{.layers = L, .heads = H, .examples = file.examples};
  auto& group = result.statistics;
  group.path = kGroup;
  add_head_axes(group, {"layer", "head"}, L, H);
  // The roles read statistics that nobody asked for too.
  auto computed = file.statistics();
  std::erase_if(computed, [&](const std::string& name) {
    return name == "js_clark" && !holds(wanted, name);
  });
  add_statistics(group,
                 file.values({.names = computed,
                              .top_k = options.top_k.value_or(file.top_k),
                              .js_stride = options.js_stride}),
                 L, H);
  KeptMaps kept(options.maps);
  kept.add(file.layers, file.facts().tokens);
  kept.finish(group, L, H);
  add_roles(result, options, /*of_model=*/false);
  keep_arrays(group, wanted);
  return result;
}

}  // namespace headlab
