// `headlab analyze RUN|FILE`: what each head does, on chosen data of a run or in exported maps.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/analysis/analysis.h"
#include "experiments/analysis/map_file.h"
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/pruning/importance.h"
#include "experiments/runs/run_files.h"
#include "experiments/runs/run_manifest.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

struct AnalyzeOptions {
  std::string source, treebank, out;
  std::vector<std::string> stats, thresholds;
  int64_t top_k = 0, js_stride = 1, maps = 0;
  bool importance = false, json = false;
  MeasureOptions measure;
  ComputeOptions compute;
};

AnalysisOptions analysis_of(const AnalyzeOptions& o) {
  AnalysisOptions options{.names = o.importance ? importance_arrays() : o.stats,
                          .js_stride = o.js_stride,
                          .maps = o.maps,
                          .treebank = o.treebank,
                          .rules = role_rules_with(o.thresholds),
                          .backend = o.compute.path()};
  if (o.top_k > 0) options.top_k = o.top_k;
  return options;
}

// Values from `at` on, nested by the sizes of dims `dim` and after it.
Json nested(const std::vector<double>& values, const std::vector<int64_t>& sizes, size_t dim,
            size_t& at, bool flags) {
  if (dim == sizes.size()) {
    const double value = values[at++];
    if (flags) return value != 0 ? 1 : 0;
    return std::isfinite(value) ? Json(value) : Json();
  }
  auto array = Json::array();
  for (int64_t n = 0; n < sizes[dim]; ++n)
    array.push_back(nested(values, sizes, dim + 1, at, flags));
  return array;
}

Json arrays_json(const ResultGroup& group) {
  auto object = Json::object();
  for (const auto& array : group.arrays) {
    std::vector<int64_t> sizes;
    for (const auto& dim : array.dims)
      for (const auto& axis : group.axes)
        if (axis.about.name == dim) sizes.push_back(axis.size);
    size_t at = 0;
    object[array.about.name] = nested(array.values, sizes, 0, at, array.flags);
  }
  return object;
}

// Coordinates that are words.
Json axes_json(const ResultGroup& group) {
  auto object = Json::object();
  for (const auto& axis : group.axes)
    if (!axis.labels.empty()) object[axis.about.name] = axis.labels;
  return object;
}

void add_results(Json& report, const Analysis& analysis) {
  report["examples"] = analysis.examples;
  report["layers"] = analysis.layers;
  report["heads"] = analysis.heads;
  report["statistics"] = arrays_json(analysis.statistics);
  if (auto axes = axes_json(analysis.statistics); !axes.empty()) report["axes"] = std::move(axes);
  report["roles"] = arrays_json(analysis.roles);
  auto& thresholds = report["thresholds"] = Json::object();
  for (const auto& role : analysis.roles.arrays)
    thresholds[role.about.name] = role.attributes.at("threshold");
}

struct Column {
  const char *statistic, *title;
  int width, digits;
};
constexpr Column kColumns[] = {
    {"entropy", "entropy", 7, 3},     {"entropy_normalized", "norm.", 5, 2},
    {"max_weight", "max", 5, 2},      {"mean_distance", "distance", 8, 2},
    {"prev_token", "prev", 5, 2},     {"self_token", "self", 5, 2},
    {"first_token", "first", 5, 2},   {"positional_share", "posit.", 6, 2},
    {"effective_rank", "rank", 6, 1}, {"grid_distance", "grid", 6, 1},
    {"importance", "import.", 7, 3}};
constexpr Column kImportanceColumns[] = {
    {"importance", "in its layer", 12, 3},     {"importance_global", "in the model", 12, 3},
    {"importance_paper", "E |dL/dxi|", 10, 4}, {"importance_per_position", "per position", 12, 6},
    {"importance_batch", "by batch", 9, 6},    {"activation", "|o|", 7, 3}};

std::string roles_of(const Analysis& analysis, size_t head) {
  std::string text;
  for (const auto& role : analysis.roles.arrays)
    if (role.values[head] != 0) text += (text.empty() ? "" : " ") + role.about.name;
  return text;
}

// A line a head: the main statistics that there are, and its roles.
void print_table(const Analysis& analysis, std::span<const Column> all) {
  std::vector<std::pair<Column, const ResultArray*>> columns;
  for (const auto& column : all)
    if (const auto* array = find_array(analysis.statistics, column.statistic))
      columns.emplace_back(column, array);
  fmt::print("{:>6}", "head");
  for (const auto& [column, array] : columns) fmt::print("  {:>{}}", column.title, column.width);
  fmt::print("{}\n", analysis.roles.arrays.empty() ? "" : "  roles");
  for (size_t n = 0; n < static_cast<size_t>(analysis.layers * analysis.heads); ++n) {
    const auto heads = static_cast<size_t>(analysis.heads);
    fmt::print("{:>6}", fmt::format("{}:{}", n / heads, n % heads));
    for (const auto& [column, array] : columns) {
      const double value = array->values[n];
      fmt::print("  {:>{}}", std::isnan(value) ? "-" : fmt::format("{:.{}f}", value, column.digits),
                 column.width);
    }
    const auto roles = roles_of(analysis, n);
    fmt::print("{}\n", roles.empty() ? "" : "  " + roles);
  }
}

void print(const AnalyzeOptions& o, Json report, const Analysis& analysis) {
  if (o.json) {
    add_results(report, analysis);
    fmt::print("{}\n", report.dump());
    return;
  }
  if (o.importance)
    print_table(analysis, kImportanceColumns);
  else
    print_table(analysis, kColumns);
  if (report.contains("out")) fmt::print("{}\n", report["out"].get<std::string>());
}

int run_on_file(const AnalyzeOptions& o) {
  const std::filesystem::path path = o.source;
  if (!o.treebank.empty())
    throw ConfigError("analyze --treebank: is for runs; maps have no text to read");
  if (o.importance) throw ConfigError("analyze --importance: is for runs; maps have no loss");
  std::map<std::string, std::string> metadata;
  const auto tensors = read_tensors(path, &metadata);
  const MapFile file(o.source, tensors, metadata);
  if (!o.out.empty()) require_place(o.out);
  const auto analysis = analyze_maps(file, analysis_of(o));
  Json report{{"file", std::filesystem::canonical(path).string()}};
  if (!o.out.empty()) {
    write_results(o.out,
                  {.title = "analysis of " + path.filename().string(),
                   .run_id = {},
                   .config_yaml = {},
                   .manifest_json = make_manifest({.data_files = {path}}).dump(),
                   .created_utc = utc_now()},
                  {analysis.statistics, analysis.roles});
    report["out"] = o.out;
  }
  print(o, report, analysis);
  return kDone;
}

int run_on_run(AnalyzeOptions& o, const at::Device& device) {
  auto options = analysis_of(o);
  auto opened = open_run(o.source, device);
  options.split = o.measure.resolve(opened, o.source);
  options.batch = o.measure.batch, options.batches = o.measure.batches;
  const auto located = locate_run(o.source).run;
  const auto out = o.out.empty() ? located / "analysis.h5" : std::filesystem::path(o.out);
  require_place(out);
  const auto analysis = analyze_run(opened, options, device);
  write_results(out,
                root_attributes(opened.experiment, "analysis", located.filename().string(),
                                manifest_of(opened.experiment, *opened.data, device)),
                {analysis.statistics, analysis.roles});
  print(o,
        {{"run", std::filesystem::canonical(o.source).string()},
         {"step", opened.step},
         {"split", o.measure.split},
         {"out", out.string()}},
        analysis);
  return kDone;
}

int run(AnalyzeOptions& o) {
  if (o.importance && !o.stats.empty())
    throw ConfigError("analyze --importance: chooses what is written, as --stats does; name one");
  const auto device = o.compute.apply();
  return std::filesystem::is_regular_file(o.source) ? run_on_file(o) : run_on_run(o, device);
}

const RegisterCommand analyze_command({
    .name = "analyze",
    .summary = "what each head does: statistics of its attention, importance, roles",
    .example = "headlab analyze runs/char_mha/0123abcd-s1337 --maps 4\n"
               "  headlab analyze maps.safetensors --thresholds sink=0.5 --json",
    .add =
        [](Arguments& a) {
          auto o = std::make_shared<AnalyzeOptions>();
          a.option("source", o->source,
                   "run or checkpoint directory; or a safetensors file of attention maps: "
                   "in.attention [layer,example,head,query,key], in.length [example], ...",
                   Arguments::kRequired);
          o->measure.add_to(a);
          a.option("--stats", o->stats,
                   "names of what is written, or all (default: the usual ones)");
          a.flag("--importance", o->importance,
                 "only how much each head matters: gradients at unit gates, in three reductions");
          a.option("--thresholds", o->thresholds, "of roles: sink=0.5 previous=0.4 ...");
          a.option("--top-k", o->top_k, "keys of top_k_mass (default: 5, or what a file says)",
                   Arguments::kAboveZero);
          a.option("--js-stride", o->js_stride, "divergence between heads of every n-th row",
                   Arguments::kAboveZero);
          a.option("--maps", o->maps, "examples whose maps and rollout are written too",
                   Arguments::kZeroOrMore);
          a.option("--treebank", o->treebank,
                   "CoNLL-U file: which relations the heads of a run follow");
          a.option("--out", o->out,
                   "HDF5 file (default: analysis.h5 in the run; of a file: none is written)");
          o->compute.add_to(a);
          a.flag("--json", o->json, "print one JSON object");
          return [o] { return run(*o); };
        },
});

}  // namespace
}  // namespace headlab
