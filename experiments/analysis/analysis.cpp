#include "experiments/analysis/analysis.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/torch.h"
#include "experiments/analysis/head_measurements.h"
#include "experiments/analysis/maps/map_file.h"
#include "experiments/inference/evaluate.h"
#include "experiments/system/progress.h"

namespace headlab {
namespace {

std::vector<std::unique_ptr<HeadMeasurement>> head_measurements(const AnalysisSetup& setup) {
  std::vector<std::unique_ptr<HeadMeasurement>> measurements;
  for (const auto make :
       {streamed_measurement, map_measurement, outputs_measurement, circuits_measurement,
        importance_measurement, repeated_tokens_measurement})
    measurements.push_back(make(setup));
  if (!setup.options.treebank.empty()) measurements.push_back(syntax_measurement(setup));
  return measurements;
}

bool holds(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
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
// head does, so that induction and duplicate are those on random tokens, where they are there.
std::map<std::string, std::vector<double>> role_values(const LabelledGroup& statistics,
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
  to.roles.path = "roles/" + to.site;
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
void keep_arrays(LabelledGroup& group, const std::vector<std::string>& names) {
  std::erase_if(group.arrays, [&](const auto& array) { return !holds(names, array.about.name); });
  std::erase_if(group.axes, [&](const auto& axis) {
    return std::ranges::none_of(
        group.arrays, [&](const auto& array) { return holds(array.dims, axis.about.name); });
  });
}

void add_head_mask(LabelledGroup& group, const Tensor& alive) {
  add_array(group,
            {"head_mask", "1", "whether the head is there", "1 alive, 0 pruned or never built"},
            {"layer", "head"}, alive)
      .flags = true;
}

// Examples that go through the model at once: their maps stay within a quarter of a gigabyte.
int64_t examples_at_once(const AnalysisSetup& setup, int64_t context, bool keeps_maps) {
  constexpr int64_t kMapBytes = int64_t{256} << 20;
  if (!keeps_maps) return setup.options.batch;
  int64_t of_example = 0;
  for (const auto& site : site_heads(*setup.run.model))
    of_example += site.layers() * site.heads() * context * context * 4;
  return std::clamp<int64_t>(kMapBytes / std::max<int64_t>(1, of_example), 1, setup.options.batch);
}

// What is found out about one site.
struct SiteWork {
  AnalysisSetup setup;
  std::vector<std::unique_ptr<HeadMeasurement>> measurements = {};  // of which something is wanted
  std::vector<std::string> kept = {"head_mask"};                    // names of arrays
};

// Measurements of which something is wanted, and all names that there are, in `known`.
SiteWork work_at(const AnalysisSetup& setup, HeadProbe& probe, std::vector<std::string>& known) {
  SiteWork work{setup};
  for (auto& measurement : head_measurements(setup)) {
    const auto names = measurement->names();
    known.insert(known.end(), names.begin(), names.end());
    const auto wanted = wanted_of(names, measurement->on_request(), setup.options);
    if (wanted.empty()) continue;
    measurement->start(wanted, probe);
    work.kept.insert(work.kept.end(), wanted.begin(), wanted.end());
    work.measurements.push_back(std::move(measurement));
  }
  return work;
}

// All batches, through the model once.
int64_t go_over(std::vector<SiteWork>& sites, SiteProbes& probes) {
  const auto& [run, options, compute, heads, importance] = sites.front().setup;
  const auto& data = *run.data;
  const int64_t examples = sites.front().setup.sample().examples();
  const bool keeps_maps = std::ranges::any_of(
      sites, [&](const SiteWork& work) { return probes.at(work.setup.heads.name()).patterns; });
  const int64_t at_once = examples_at_once(sites.front().setup, run.model->context(), keeps_maps);
  Progress progress(0, examples, at_once, ProgressOutput::standard("example"));
  at::NoGradGuard no_grad;
  for (int64_t first = 0; first < examples; first += at_once) {
    const auto batch = data.eval_batch(options.split, first, std::min(at_once, examples - first));
    HiddenStates hidden;
    const ModelContext ctx{.observer = &probes, .backend = compute.backend, .hidden = &hidden};
    const auto on_device = batch.to(compute.device);
    probes.tell(on_device);
    const auto out = run.model->forward(on_device, ctx);
    for (auto& work : sites)
      for (auto& measurement : work.measurements)
        measurement->add({batch, first, probes.at(work.setup.heads.name()), hidden, out});
    progress.step(first + batch.examples(), batch.tokens());
  }
  progress.finish();
  return examples;
}

// Its arrays, those of the split's examples with how many these were.
void finish(HeadMeasurement& measurement, LabelledGroup& group, int64_t examples,
            bool whole_split) {
  const size_t others = group.arrays.size();
  measurement.finish(group);
  if (!measurement.of_examples()) return;
  for (size_t i = others; i < group.arrays.size(); ++i)
    group.arrays[i].count_attributes.insert({{"examples", examples}, {"whole_split", whole_split}});
}

Analysis finish(SiteWork& work, int64_t examples) {
  const auto& heads = work.setup.heads;
  Analysis result{
      .site = heads.name(), .layers = heads.layers(), .heads = heads.heads(), .examples = examples};
  auto& group = result.statistics;
  group.path = "analysis/" + heads.name();
  add_head_axes(group, {"layer", "head"}, heads.layers(), heads.heads());
  add_head_mask(group, heads.alive());
  const auto split = work.setup.options.split;
  const auto& data = *work.setup.run.data;
  const bool whole = examples == data.examples(split) && takes_whole(split, data.tokens(split));
  for (auto& measurement : work.measurements) finish(*measurement, group, examples, whole);
  add_roles(result, work.setup.options, /*of_model=*/true);
  keep_arrays(group, work.kept);
  return result;
}

}  // namespace

LogVariable variable_of(const Statistic& s) { return {s.name, s.units, s.long_name, s.formula}; }

std::vector<uint8_t> AnalysisSetup::token_classes() const {
  return heads.site().keys == &Batch::ids ? run.data->token_classes() : std::vector<uint8_t>();
}

int64_t AnalysisSetup::vocabulary() const {
  const auto shape = run.data->shape();
  return heads.site().keys == &Batch::source ? shape.source_vocabulary : shape.vocabulary;
}

bool AnalysisSetup::has_token_map() const {
  return std::ranges::any_of(heads.site().layers, [](const auto* layer) {
    return (*layer)->traits().map == HeadMap::kTokens;
  });
}

bool AnalysisSetup::reads_ids_alone() const {
  return std::ranges::all_of(run.model->sites(), &Site::within_ids);
}

std::vector<Analysis> analyze_run(OpenedRun& run, const AnalysisOptions& options,
                                  const Compute& compute) {
  run.model->eval();
  SiteProbes probes(*run.model);
  const auto importance = std::make_shared<std::optional<HeadImportance>>();
  std::vector<SiteWork> sites;
  std::vector<std::string> known;
  for (auto& heads : site_heads(*run.model)) {
    auto& probe = probes.at(heads.name());
    sites.push_back(work_at({run, options, compute, std::move(heads), importance}, probe, known));
  }
  check_names(options, known);
  const int64_t examples = go_over(sites, probes);
  std::vector<Analysis> results;
  for (auto& work : sites) results.push_back(finish(work, examples));
  return results;
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
  group.path = "analysis/" + result.site;
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
  kept.add(file.layers, file.context().tokens, {});
  kept.finish(group, L, H);
  add_roles(result, options, /*of_model=*/false);
  keep_arrays(group, wanted);
  return result;
}

}  // namespace headlab
