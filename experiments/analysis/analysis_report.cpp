#include "experiments/analysis/analysis_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "experiments/files/json_text.h"
#include "experiments/measuring/kendall.h"
#include "experiments/runs/run_files.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/text/table.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

// Element `at` of an array.
Json element(const LabelledArray& array, size_t at) {
  if (!array.texts.empty()) return array.texts[at];
  const double value = array.values[at];
  if (array.flags) return value != 0 ? 1 : 0;
  return std::isfinite(value) ? Json(value) : Json();
}

// Elements from `at` on, nested by the sizes of dims `dim` and after it.
Json nested(const LabelledArray& array, const H5Extent& sizes, size_t dim, size_t& at) {
  if (dim == sizes.size()) return element(array, at++);
  auto all = Json::array();
  for (hsize_t n = 0; n < sizes[dim]; ++n) all.push_back(nested(array, sizes, dim + 1, at));
  return all;
}

Json arrays_json(const LabelledGroup& group) {
  auto object = Json::object();
  for (const auto& array : group.arrays) {
    size_t at = 0;
    object[array.about.name] = nested(array, group.extent(array.dims), 0, at);
  }
  return object;
}

// Coordinates that are words.
Json axes_json(const LabelledGroup& group) {
  auto object = Json::object();
  for (const auto& axis : group.axes)
    if (!axis.labels.empty()) object[axis.about.name] = axis.labels;
  return object;
}

// What the heads are sorted by: the first of these that was asked for.
constexpr const char* kSortedBy[] = {"importance_global", "importance"};

struct Shown {
  const char *statistic, *title, *format = "{:.2f}";
};
constexpr const char *kOne = "{:.1f}", *kThree = "{:.3f}", *kFour = "{:.4f}", *kSix = "{:.6f}";
constexpr Shown kColumns[] = {{"entropy", "entropy", kThree},
                              {"entropy_normalized", "norm."},
                              {"max_weight", "max"},
                              {"mean_distance", "distance"},
                              {"prev_token", "prev"},
                              {"self_token", "own"},
                              {"first_token", "first"},
                              {"positional_share", "posit."},
                              {"effective_rank", "rank", kOne},
                              {"importance_global", "import.", kThree},
                              {"importance", "in layer", kThree}};
// Of images: positions are patches of a plane behind the class token.
constexpr Shown kImageColumns[] = {{"entropy", "entropy", kThree},
                                   {"entropy_normalized", "norm."},
                                   {"max_weight", "max"},
                                   {"grid_distance", "distance"},
                                   {"first_token", "class"},
                                   {"self_token", "own"},
                                   {"effective_rank", "rank", kOne},
                                   {"importance_global", "import.", kThree},
                                   {"importance", "in layer", kThree}};
constexpr Shown kImportanceColumns[] = {
    {"importance", "in its layer", kThree},    {"importance_global", "in the model", kThree},
    {"importance_paper", "E |dL/dxi|", kFour}, {"importance_per_position", "per position", kSix},
    {"importance_batch", "by batch", kSix},    {"activation", "|o|", kThree}};

std::string roles_of(const Analysis& analysis, size_t head) {
  std::string text;
  for (const auto& role : analysis.roles.arrays)
    if (role.values[head] != 0) text += (text.empty() ? "" : " ") + role.about.name;
  return text;
}

// Heads in the order of a table: by number, or those of most importance first.
std::vector<size_t> rows_of(const Analysis& analysis, bool sort) {
  const LabelledArray* by = nullptr;
  for (const char* name : kSortedBy)
    if (!by && sort) by = find_array(analysis.statistics, name);
  // Of equal values it is the order of their numbers.
  return falling_order(by ? by->values : std::vector<double>(analysis.layers * analysis.heads));
}

// What the columns are, each in a line: "prev: weight on the previous token [1]".
std::string legend(const Analysis& analysis, std::span<const Shown> columns) {
  std::string text;
  for (const auto& column : columns)
    if (const auto* array = find_array(analysis.statistics, column.statistic)) {
      const auto& about = array->about;
      text += fmt::format("{:>12}  {}{}\n", column.title, about.long_name,
                          about.units == "1" ? "" : " [" + about.units + "]");
    }
  return text;
}

std::string table(const Analysis& analysis, std::span<const Shown> all, bool sort) {
  std::vector<Column> columns{{.title = "head"}};
  std::vector<const LabelledArray*> arrays;
  for (const auto& shown : all)
    if (const auto* array = find_array(analysis.statistics, shown.statistic)) {
      columns.push_back({.title = shown.title, .format = shown.format});
      arrays.push_back(array);
    }
  const bool has_roles = !analysis.roles.arrays.empty();
  if (has_roles) columns.push_back({.title = "roles", .is_text = true});
  Table table(std::move(columns));
  for (const size_t n : rows_of(analysis, sort)) {
    const auto heads = static_cast<size_t>(analysis.heads);
    std::vector<Cell> cells{fmt::format("{}:{}", n / heads, n % heads)};
    for (const auto* array : arrays) cells.emplace_back(array->values[n]);
    if (has_roles) cells.emplace_back(roles_of(analysis, n));
    table.add(std::move(cells));
  }
  return table.text();
}

// One table behind the other, with its site's name where there are several, and the legend.
std::string tables(const std::vector<Analysis>& sites, std::span<const Shown> columns, bool sort) {
  std::string text;
  for (const auto& site : sites) {
    if (sites.size() > 1) text += site.site + "\n";
    text += table(site, columns, sort);
  }
  return sites.empty() ? text : text + "\n" + legend(sites.front(), columns);
}

Json site_json(const Analysis& analysis) {
  Json report{{"examples", analysis.examples},
              {"layers", analysis.layers},
              {"heads", analysis.heads},
              {"statistics", arrays_json(analysis.statistics)}};
  if (auto axes = axes_json(analysis.statistics); !axes.empty()) report["axes"] = std::move(axes);
  report["roles"] = arrays_json(analysis.roles);
  auto& thresholds = report["thresholds"] = Json::object();
  for (const auto& role : analysis.roles.arrays)
    thresholds[role.about.name] = role.attributes.at("threshold");
  return report;
}

const LabelledAxis& axis_of(const LabelledGroup& group, const std::string& name) {
  return *std::ranges::find(group.axes, name, [](const auto& axis) { return axis.about.name; });
}

// Where entry r of the last dimension, of size R, is largest: index of what stands before it, and
// the value. NaN is no value.
std::pair<size_t, double> largest(const std::vector<double>& values, size_t r, size_t R) {
  std::pair<size_t, double> best{0, -1};
  for (size_t n = 0; n * R + r < values.size(); ++n)
    if (const double value = values[n * R + r]; value > best.second) best = {n, value};
  return best;
}

std::string relations_table(const Analysis& analysis, const LabelledArray& accuracy) {
  const auto& group = analysis.statistics;
  const auto &relations = axis_of(group, "relation"), &offsets = axis_of(group, "fixed_offset");
  const auto& directions = axis_of(group, "direction").labels;
  const auto& counts = find_array(group, "relation_count")->values;
  const auto& baseline = find_array(group, "baseline")->values;
  const auto least = find_array(group, "best_relation")->count_attributes.at("least_cases");
  const auto R = static_cast<size_t>(relations.size), H = static_cast<size_t>(analysis.heads);
  Table table({{.title = "relation"},
               {.title = "words", .format = "{}"},
               {.title = "head"},
               {.title = "accuracy", .format = "{:.1f}%"},
               {.title = "by its", .is_text = true},
               {.title = "baseline", .format = "{:.1f}%"},
               {.title = "offset", .format = "{:+.0f}"}});
  for (const size_t r : falling_order(counts)) {
    if (counts[r] < static_cast<double>(least) || relations.labels[r] == "root") continue;
    const auto [n, share] = largest(accuracy.values, r, R);
    const auto [offset, fixed] = largest(baseline, r, R);
    const size_t head = n % (static_cast<size_t>(analysis.layers) * H);
    table.add({relations.labels[r], counts[r], fmt::format("{}:{}", head / H, head % H),
               100 * share, directions.at(n / (static_cast<size_t>(analysis.layers) * H)),
               100 * fixed, static_cast<double>(offsets.coordinates.at(offset))});
  }
  return table.text();
}

}  // namespace

Json analysis_json(const std::vector<Analysis>& sites) {
  if (sites.size() == 1) return site_json(sites.front());
  Json report;
  for (const auto& site : sites) report["sites"][site.site] = site_json(site);
  return report;
}

std::string analysis_text(const std::vector<Analysis>& sites, bool sort) {
  const bool of_images =
      !sites.empty() && find_array(sites.front().statistics, "grid_distance") != nullptr;
  return tables(sites, of_images ? std::span<const Shown>(kImageColumns) : kColumns, sort);
}

std::vector<LabelledGroup> analysis_groups(const std::vector<Analysis>& sites) {
  std::vector<LabelledGroup> groups;
  for (const auto& site : sites) {
    groups.push_back(site.statistics);
    groups.push_back(site.roles);
  }
  return groups;
}

void write_analysis(const std::filesystem::path& out, const std::filesystem::path& maps,
                    const Analysis& analysis, const nlohmann::ordered_json& about) {
  auto manifest = make_manifest({.data = data_json({maps})});
  manifest["maps"] = about;
  write_results(out,
                {.title = "analysis of " + maps.filename().string(),
                 .run_id = {},
                 .config_yaml = {},
                 .manifest_json = json_text(manifest),
                 .created_utc = utc_now()},
                {analysis.statistics, analysis.roles});
}

Json maps_json(const std::filesystem::path& path, const MapFile& file) {
  return {{"file", std::filesystem::canonical(path).string()},
          {"causal", file.context().causal},
          {"causal_from", file.causal_from}};
}

std::string maps_text(const MapFile& file) {
  if (!file.context().causal || file.causal_from != "weights") return "";
  return "taken as causal: no query attends to a later key (--causal no says otherwise)\n";
}

std::string importance_text(const std::vector<Analysis>& sites, bool sort) {
  return tables(sites, kImportanceColumns, sort);
}

std::string relations_text(const std::vector<Analysis>& sites) {
  std::string text;
  for (const auto& site : sites)
    if (const auto* accuracy = find_array(site.statistics, "accuracy"))
      text +=
          (sites.size() > 1 ? "\n" + site.site + "\n" : "\n") + relations_table(site, *accuracy);
  if (text.empty()) return text;
  return text +
         "Share of a relation's words whose head (of the sentence) the best head of attention "
         "finds, by the row\n"
         "of the dependent or the column of the head; and that stand at the best fixed offset from "
         "it. The best\n"
         "of all heads is chosen on the same sentences: with few words that flatters it.\n";
}

}  // namespace headlab
