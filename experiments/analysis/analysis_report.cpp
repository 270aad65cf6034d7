#include "experiments/analysis/analysis_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "experiments/files/json_text.h"
#include "experiments/runs/run_files.h"
#include "experiments/runs/run_manifest.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

// Element `at` of an array.
Json element(const ResultArray& array, size_t at) {
  if (!array.texts.empty()) return array.texts[at];
  const double value = array.values[at];
  if (array.flags) return value != 0 ? 1 : 0;
  return std::isfinite(value) ? Json(value) : Json();
}

// Elements from `at` on, nested by the sizes of dims `dim` and after it.
Json nested(const ResultArray& array, const std::vector<int64_t>& sizes, size_t dim, size_t& at) {
  if (dim == sizes.size()) return element(array, at++);
  auto all = Json::array();
  for (int64_t n = 0; n < sizes[dim]; ++n) all.push_back(nested(array, sizes, dim + 1, at));
  return all;
}

Json arrays_json(const ResultGroup& group) {
  auto object = Json::object();
  for (const auto& array : group.arrays) {
    std::vector<int64_t> sizes;
    for (const auto& dim : array.dims)
      for (const auto& axis : group.axes)
        if (axis.about.name == dim) sizes.push_back(axis.size);
    size_t at = 0;
    object[array.about.name] = nested(array, sizes, 0, at);
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

// What the heads are sorted by: the first of these that was asked for.
constexpr const char* kSortedBy[] = {"importance_global", "importance"};

struct Column {
  const char *statistic, *title;
  int width, digits;
};
constexpr Column kColumns[] = {
    {"entropy", "entropy", 7, 3},     {"entropy_normalized", "norm.", 5, 2},
    {"max_weight", "max", 5, 2},      {"mean_distance", "distance", 8, 2},
    {"prev_token", "prev", 5, 2},     {"self_token", "own", 5, 2},
    {"first_token", "first", 5, 2},   {"positional_share", "posit.", 6, 2},
    {"effective_rank", "rank", 6, 1}, {"importance_global", "import.", 7, 3},
    {"importance", "in layer", 8, 3}};
// Of images: positions are patches of a plane behind the class token.
constexpr Column kImageColumns[] = {
    {"entropy", "entropy", 7, 3},     {"entropy_normalized", "norm.", 5, 2},
    {"max_weight", "max", 5, 2},      {"grid_distance", "distance", 8, 2},
    {"first_token", "class", 5, 2},   {"self_token", "own", 5, 2},
    {"effective_rank", "rank", 6, 1}, {"importance_global", "import.", 7, 3},
    {"importance", "in layer", 8, 3}};
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

// Heads in the order of a table: by number, or those of most importance first.
std::vector<size_t> rows_of(const Analysis& analysis, bool sort) {
  std::vector<size_t> rows(static_cast<size_t>(analysis.layers * analysis.heads));
  std::iota(rows.begin(), rows.end(), size_t{0});
  const ResultArray* by = nullptr;
  for (const char* name : kSortedBy)
    if (!by) by = find_array(analysis.statistics, name);
  if (!sort || !by) return rows;
  const auto key = [&](size_t n) {
    return std::isnan(by->values[n]) ? -std::numeric_limits<double>::infinity() : by->values[n];
  };
  std::stable_sort(rows.begin(), rows.end(), [&](size_t a, size_t b) { return key(a) > key(b); });
  return rows;
}

// What the columns are, each in a line: "prev: weight on the previous token [1]".
std::string legend(const Analysis& analysis, std::span<const Column> columns) {
  std::string text;
  for (const auto& column : columns)
    if (const auto* array = find_array(analysis.statistics, column.statistic)) {
      const auto& about = array->about;
      text += fmt::format("{:>12}  {}{}\n", column.title, about.long_name,
                          about.units == "1" ? "" : " [" + about.units + "]");
    }
  return text;
}

std::string table(const Analysis& analysis, std::span<const Column> all, bool sort) {
  std::vector<std::pair<Column, const ResultArray*>> columns;
  for (const auto& column : all)
    if (const auto* array = find_array(analysis.statistics, column.statistic))
      columns.emplace_back(column, array);
  auto text = fmt::format("{:>6}", "head");
  for (const auto& [column, array] : columns)
    text += fmt::format("  {:>{}}", column.title, column.width);
  text += analysis.roles.arrays.empty() ? "\n" : "  roles\n";
  for (const size_t n : rows_of(analysis, sort)) {
    const auto heads = static_cast<size_t>(analysis.heads);
    text += fmt::format("{:>6}", fmt::format("{}:{}", n / heads, n % heads));
    for (const auto& [column, array] : columns) {
      const double value = array->values[n];
      text += fmt::format("  {:>{}}",
                          std::isnan(value) ? "-" : fmt::format("{:.{}f}", value, column.digits),
                          column.width);
    }
    const auto roles = roles_of(analysis, n);
    text += roles.empty() ? "\n" : "  " + roles + "\n";
  }
  return text;
}

// One table behind the other, with its site's name where there are several, and the legend.
std::string tables(const std::vector<Analysis>& sites, std::span<const Column> columns, bool sort) {
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
  return tables(sites, of_images ? std::span<const Column>(kImageColumns) : kColumns, sort);
}

std::vector<ResultGroup> analysis_groups(const std::vector<Analysis>& sites) {
  std::vector<ResultGroup> groups;
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

}  // namespace headlab
