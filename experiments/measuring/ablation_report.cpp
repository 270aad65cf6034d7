#include "experiments/measuring/ablation_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/torch.h"
#include "experiments/inference/evaluate.h"
#include "experiments/measuring/kendall.h"
#include "experiments/system/progress.h"
#include "experiments/text/table.h"
#include "experiments/text/with_commas.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

// Why a result may have no numbers; empty where all have some.
std::string why_unmeasured(const std::vector<Ablated>& results) {
  const auto is_unmeasured = [](const Ablated& r) { return std::isnan(r.changes.at("l2")); };
  if (std::ranges::none_of(results, is_unmeasured)) return "";
  return "mode uniform is not measured for heads whose weights are not over tokens: they have no "
         "keys to weigh alike";
}

Json study_json(const AblationStudy& study, const std::vector<Ablated>& results, const Task& task) {
  Json object;
  auto& removed = object["removed"] = Json::array();
  for (const auto& r : results) {
    const auto heads = to_texts(r.heads);
    removed.push_back(study.prefix.empty() ? Json(heads.front()) : Json(heads));
  }
  if (study.prefix == "only_")
    for (const auto& place : study.places) object["stays"].push_back(to_text(place.front()));
  if (const auto why = why_unmeasured(results); !why.empty()) object["not_measured"] = why;
  for (const auto& variable : output_change_variables(task)) {
    auto& values = object[variable.name] = Json::array();
    for (const auto& r : results) values.push_back(r.changes.at(variable.name));
  }
  for (const auto& variable : significance_variables(task)) {
    auto& values = object[variable.name] = Json::array();
    for (const auto& r : results) values.push_back(variable.json(r.significance));
  }
  return object;
}

// The places of a study, in their order or by the rise of the loss.
std::vector<size_t> rows_of(const std::vector<Ablated>& results, const Task& task, bool sort) {
  std::vector<double> rises(results.size());
  for (size_t n = 0; sort && n < rises.size(); ++n)
    rises[n] = results[n].changes.at(change_name(task.metrics().front()));
  return falling_order(rises);
}

std::string legend(const Task& task) {
  std::string text = "\n";
  const auto add = [&](const std::string& title, const std::string& what) {
    text += fmt::format("{:>9}  {}\n", title, what);
  };
  for (const auto& metric : task.metrics())
    add(metric.name, fmt::format("change of the {}{}", metric.long_name,
                                 metric.units == "1" ? "" : " [" + metric.units + "]"));
  add("l2", "Frobenius norm of the change of the last hidden states, over all positions");
  add("relative", "l2 over the norm of the whole model's last hidden states");
  add("KL", "of the predictions, from the whole model's [nat]");
  add("cosine", "between the last hidden states before and after; 1: the same direction");
  add("p", p_legend(task));
  if (!task.least_at_whole()) add("*", star_legend());
  return text;
}

// Changes of the metrics under their names, the loss with a star where it is more than chance.
std::string study_text(const AblationStudy& study, const std::string& mode, const Task& task,
                       bool sort) {
  std::vector<Column> columns{{.title = study.prefix == "pair_" ? "heads" : "head"}};
  for (const auto& metric : task.metrics()) {
    columns.push_back({.title = metric.name, .format = "{:+.4f}"});
    if (columns.size() == 2) columns.push_back({.title = "", .is_text = true});
  }
  for (const char* title : {"l2", "relative", "KL [nat]"})
    columns.push_back({.title = title, .format = "{:.4g}"});
  columns.push_back({.title = "cosine", .format = "{:.5f}"});
  columns.insert(columns.end(), {{.title = "p"}, {.title = "examples"}});
  Table table(std::move(columns));
  const auto& results = study.by_mode.at(mode);
  for (const size_t n : rows_of(results, task, sort)) {
    const auto& d = results[n].changes;
    const auto& chance = results[n].significance;
    std::vector<Cell> cells{fmt::format("{}", fmt::join(to_texts(study.places[n]), " "))};
    for (const auto& metric : task.metrics()) {
      cells.emplace_back(d.at(change_name(metric)));
      if (cells.size() == 2) cells.emplace_back(chance.more_than_chance() ? "*" : "");
    }
    for (const char* change : {"l2", "relative", "kl", "cosine"}) cells.emplace_back(d.at(change));
    cells.emplace_back(p_text(chance.holm));
    cells.push_back(chance.examples > 0 ? Cell(with_commas(chance.examples)) : Cell());
    table.add(std::move(cells));
  }
  return fmt::format("{} ({})\n", study.what, mode) + table.text();
}

// One number of a study in every mode: [mode, layer, head], of pairs within the site [mode, layer,
// head, layer2, head2], NaN where nothing was ablated.
template <class ValueOf>
LabelledArray array_of(const AblationStudy& study, const std::vector<std::string>& modes,
                       const LogVariable& variable, const SiteHeads& site, ValueOf value_of) {
  const int64_t layers = site.layers(), heads = site.heads();
  const bool pairs = study.dims.size() == 4;
  const auto grid = static_cast<size_t>(layers * heads), cells = pairs ? grid * grid : grid;
  LabelledArray array{variable, {"mode"}, std::vector<double>(modes.size() * cells, kNaN)};
  array.about.name = study.prefix + variable.name;
  array.about.comment += "; " + study.what;
  array.dims.insert(array.dims.end(), study.dims.begin(), study.dims.end());
  const auto place = [&](const HeadId& id) {
    return static_cast<size_t>(id.layer * heads + id.head);
  };
  for (const auto& mode : modes)
    if (const auto why = why_unmeasured(study.by_mode.at(mode)); !why.empty())
      array.about.comment += "; NaN: " + why;
  for (size_t m = 0; m < modes.size(); ++m)
    for (size_t n = 0; n < study.places.size(); ++n) {
      const auto &first = study.places[n].front(), &second = study.places[n].back();
      if (first.site != site.name() || second.site != site.name()) continue;
      const auto a = place(first), b = place(second);
      const double value = value_of(study.by_mode.at(modes[m])[n]);
      array.values[m * cells + (pairs ? a * grid + b : a)] = value;
      array.values[m * cells + (pairs ? b * grid + a : b)] = value;  // both sides of the diagonal
    }
  return array;
}

}  // namespace

void keep_heads(AblationStudy& study, const std::vector<HeadId>& heads) {
  const auto is_kept = [&](const HeadId& id) {
    return std::ranges::find(heads, id) != heads.end();
  };
  AblationStudy kept = study;
  kept.sets.clear(), kept.places.clear();
  for (size_t n = 0; n < study.places.size(); ++n) {
    if (!std::ranges::all_of(study.places[n], is_kept)) continue;
    kept.sets.push_back(study.sets[n]);
    kept.places.push_back(study.places[n]);
  }
  study = std::move(kept);
}

AblationStudy study_of_heads(Model& model) {
  const auto heads = single_heads(model);
  return {"", "this head is ablated", {"layer", "head"}, heads, heads};
}

AblationStudy study_of_pairs(Model& model) {
  const auto pairs = head_pairs(model);
  return {"pair_", "both heads are ablated", {"layer", "head", "layer2", "head2"}, pairs, pairs};
}

AblationStudy study_of_all_but_one(Model& model) {
  return {"only_",
          "all heads of this layer but this one are ablated",
          {"layer", "head"},
          all_but_one(model),
          single_heads(model)};
}

void run_studies(std::vector<AblationStudy>& studies, const std::vector<std::string>& modes,
                 Model& model, const Sample& sample, const Compute& compute) {
  int64_t sets = 0, done = 0;
  for (const auto& study : studies) sets += std::ssize(study.sets);
  const int64_t batches = (sample.examples() + sample.batch - 1) / sample.batch;
  Progress progress(0, std::ssize(modes) * sets * batches, 1, ProgressOutput::standard("pass"));
  for (const auto& mode : modes) {
    for (auto& study : studies)
      study.by_mode[mode] = ablate(model, sample, study.sets, ablation_mode(mode), compute,
                                   [&] { progress.step(++done, sample.batch * model.context()); });
  }
  progress.finish();
}

Json studies_json(const std::vector<AblationStudy>& studies, const std::vector<std::string>& modes,
                  const Task& task) {
  Json object;
  for (const auto& mode : modes)
    for (const auto& study : studies) {
      const auto found = study_json(study, study.by_mode.at(mode), task);
      auto& to = modes.size() == 1 ? object : object[mode];
      if (study.prefix.empty())
        to.update(found);
      else
        to[study.prefix == "pair_" ? "pairs" : "all_but_one"] = found;
    }
  if (modes.size() == 1) object["mode"] = modes.front();
  return object;
}

std::string studies_text(const std::vector<AblationStudy>& studies,
                         const std::vector<std::string>& modes, const Task& task, bool sort) {
  std::string text;
  for (const auto& mode : modes)
    for (const auto& study : studies) {
      text += study_text(study, mode, task, sort);
      if (const auto why = why_unmeasured(study.by_mode.at(mode)); !why.empty())
        text += fmt::format("-: {}\n", why);
    }
  return text + legend(task);
}

std::vector<LabelledGroup> studies_groups(const std::vector<AblationStudy>& studies,
                                          const std::vector<std::string>& modes, Model& model,
                                          const Task& task, const Evaluation& whole) {
  std::vector<LabelledGroup> groups;
  for (const auto& site : site_heads(model)) {
    auto& group = groups.emplace_back();
    group.path = "ablation/" + site.name();
    group.axes = {
        {{"mode", "1", "mode of ablation",
          "zero: o_h = 0; mean: its mean over all positions; position_mean: its mean over the "
          "examples at each position; uniform: equal weights"},
         std::ssize(modes),
         modes}};
    for (const auto& study : studies) {
      add_head_axes(group, study.dims, site.layers(), site.heads());
      const size_t first = group.arrays.size();
      for (const auto& variable : output_change_variables(task))
        group.arrays.push_back(array_of(study, modes, variable, site, [&](const Ablated& a) {
          return a.changes.at(variable.name);
        }));
      for (const auto& variable : significance_variables(task)) {
        group.arrays.push_back(array_of(study, modes, variable, site, [&](const Ablated& a) {
          return variable.value(a.significance);
        }));
        group.arrays.back().attributes = {{"significant_below", kReportedBelow}};
        group.arrays.back().count_attributes = {{"rows_of_table", std::ssize(study.sets)}};
      }
      for (size_t n = first; n < group.arrays.size(); ++n)
        group.arrays[n].count_attributes.merge(measured_attributes(whole));
    }
  }
  return groups;
}

}  // namespace headlab
