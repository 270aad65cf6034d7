#include "experiments/analysis/relations_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "experiments/text/table.h"

namespace headlab {
namespace {

const LabelledAxis& axis_of(const LabelledGroup& group, const std::string& name) {
  return *std::find_if(group.axes.begin(), group.axes.end(),
                       [&](const LabelledAxis& axis) { return axis.about.name == name; });
}

// Where entry r of the last dimension, of size R, is largest: index of what stands before it, and
// the value. NaN is no value.
std::pair<size_t, double> largest(const std::vector<double>& values, size_t r, size_t R) {
  std::pair<size_t, double> best{0, -1};
  for (size_t n = 0; n * R + r < values.size(); ++n)
    if (const double value = values[n * R + r]; value > best.second) best = {n, value};
  return best;
}

std::string table_of(const Analysis& analysis, const LabelledArray& accuracy) {
  const auto& group = analysis.statistics;
  const auto &relations = axis_of(group, "relation"), &offsets = axis_of(group, "fixed_offset");
  const auto& directions = axis_of(group, "direction").labels;
  const auto& counts = find_array(group, "relation_count")->values;
  const auto& baseline = find_array(group, "baseline")->values;
  const auto least = find_array(group, "best_relation")->count_attributes.at("least_cases");
  const auto R = static_cast<size_t>(relations.size), H = static_cast<size_t>(analysis.heads);
  std::vector<size_t> rows(R);
  std::iota(rows.begin(), rows.end(), size_t{0});
  std::stable_sort(rows.begin(), rows.end(),
                   [&](size_t a, size_t b) { return counts[a] > counts[b]; });
  Table table({{.title = "relation"},
               {.title = "words", .format = "{}"},
               {.title = "head"},
               {.title = "accuracy", .format = "{:.1f}%"},
               {.title = "by its", .is_text = true},
               {.title = "baseline", .format = "{:.1f}%"},
               {.title = "offset", .format = "{:+.0f}"}});
  for (const size_t r : rows) {
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

std::string relations_text(const std::vector<Analysis>& sites) {
  std::string text;
  for (const auto& site : sites)
    if (const auto* accuracy = find_array(site.statistics, "accuracy"))
      text += (sites.size() > 1 ? "\n" + site.site + "\n" : "\n") + table_of(site, *accuracy);
  if (text.empty()) return text;
  return text +
         "Share of a relation's words whose head (of the sentence) the best head of attention "
         "finds, by the row\n"
         "of the dependent or the column of the head; and that stand at the best fixed offset from "
         "it. The best\n"
         "of all heads is chosen on the same sentences: with few words that flatters it.\n";
}

}  // namespace headlab
