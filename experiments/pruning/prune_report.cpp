#include "experiments/pruning/prune_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/torch.h"
#include "experiments/files/json_text.h"
#include "experiments/files/replacement_file.h"
#include "experiments/inference/evaluate.h"
#include "experiments/logs/result_arrays.h"
#include "experiments/runs/run_files.h"
#include "experiments/text/number_text.h"
#include "experiments/text/table.h"
#include "experiments/text/with_commas.h"
#include "experiments/training/training_metrics.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

Json rounds_json(const std::vector<PruneRound>& rounds) {
  auto list = Json::array();
  for (const auto& round : rounds) {
    list.push_back({{"kept", round.kept},
                    {"removed", to_texts(round.removed)},
                    {"parameters", round.parameters},
                    {"flops_per_token", round.flops}});
    for (const auto& mean : round.evaluation.means) list.back()[mean.name] = mean.value;
    list.back().update(measured_json(round.evaluation));
    if (round.uncut)
      for (const auto& mean : round.uncut->means) list.back()["uncut"][mean.name] = mean.value;
    list.back()["seconds"] = round.seconds;
  }
  return list;
}

LabelledAxis round_axis(const std::vector<PruneRound>& rounds) {
  return {{"round", "1", "round of pruning", "0: before"}, std::ssize(rounds)};
}

// Which heads of a site went in which round.
void add_removed(LabelledGroup& group, const std::vector<PruneRound>& rounds,
                 const SiteHeads& site) {
  add_head_axes(group, {"layer", "head"}, site.layers(), site.heads());
  std::vector<double> removed(rounds.size() * site.layers() * site.heads());
  for (size_t r = 0; r < rounds.size(); ++r)
    for (const auto& id : rounds[r].removed)
      if (id.site == site.name())
        removed[(r * site.layers() + id.layer) * site.heads() + id.head] = 1;
  group.arrays.push_back({{"removed", "1", "head removed in this round", "1: removed"},
                          {"round", "layer", "head"},
                          std::move(removed),
                          /*flags=*/true});
}

// The group /pruning; of a model with several sites, what went of each lies in /pruning/<site>.
std::vector<LabelledGroup> pruning_groups(const std::vector<PruneRound>& rounds, Model& model) {
  LabelledGroup group{"pruning", {round_axis(rounds)}, {}};
  const auto add_variable = [&](const LogVariable& about, auto value_of) {
    LabelledArray array{about, {"round"}, {}};
    for (const auto& round : rounds) array.values.push_back(static_cast<double>(value_of(round)));
    array.about.counts = std::is_integral_v<decltype(value_of(rounds.front()))>;
    group.arrays.push_back(std::move(array));
  };
  const auto add = [&](const char* name, const char* units, const char* what, auto value_of) {
    add_variable({name, units, what, what}, value_of);
  };
  add("kept", "1", "heads left", [](const auto& r) { return r.kept; });
  add("parameters", "1", "parameters of the sliced model",
      [](const auto& r) { return r.parameters; });
  add("flops", "1", "floating-point operations a token, forward, full context, sliced",
      [](const auto& r) { return r.flops; });
  const auto& measured = rounds.front().evaluation;
  for (const auto& metric : measured.means) {
    add_variable({metric.name, metric.units, metric.long_name,
                  fmt::format("{}; split {}, {}", metric.formula, split_name(measured.split),
                              measured_text(measured))},
                 [&](const auto& r) { return r.evaluation.mean(metric.name); });
    group.arrays.back().count_attributes = measured_attributes(measured);
  }
  if (rounds.front().uncut)
    for (const auto& metric : measured.means) {
      add_variable({"uncut_" + metric.name, metric.units, metric.long_name + " without a cut",
                    "the same of the whole model after as many updates of tuning"},
                   [&](const auto& r) { return r.uncut ? r.uncut->mean(metric.name) : kNaN; });
      group.arrays.back().count_attributes = measured_attributes(measured);
    }
  add("seconds", "s", "time of ranking, pruning and tuning",
      [](const auto& r) { return r.seconds; });
  const auto sites = site_heads(model);
  if (sites.size() == 1) {
    add_removed(group, rounds, sites.front());
    return {group};
  }
  std::vector<LabelledGroup> groups{group};
  for (const auto& site : sites) {
    groups.push_back({"pruning/" + site.name(), {round_axis(rounds)}, {}});
    add_removed(groups.back(), rounds, site);
  }
  return groups;
}

std::string words_of(const Json& texts) {
  return fmt::format("{}", fmt::join(texts.get<std::vector<std::string>>(), " "));
}

std::string csv(const Json& report, const Task& task) {
  std::vector<Column> columns{{.name = "round"}};
  for (const char* name : {"kept", "parameters", "flops_per_token"})
    columns.push_back({.name = name});
  for (const auto& metric : task.metrics()) columns.push_back({.name = metric.name});
  for (const char* name : {"split", "examples", "tokens", "seconds", "removed"})
    columns.push_back({.name = name});
  Table table(columns);
  int64_t n = 0;
  for (const auto& round : report["rounds"]) {
    std::vector<Cell> cells{n++};
    for (size_t c = 1; c + 1 < columns.size(); ++c) {
      const auto& value = round[columns[c].name];
      const bool none = value.is_number_float() && std::isnan(value.get<double>());
      cells.push_back(none                ? Cell()
                      : value.is_string() ? Cell(value.get<std::string>())
                                          : Cell(value.dump()));
    }
    cells.emplace_back(words_of(round["removed"]));
    table.add(std::move(cells));
  }
  return table.csv();
}

// " (p = 0.03 *, 64 examples)", of the change of the loss.
std::string chance_text(const Json& r) {
  const auto p = p_text(r["p_holm"].get<double>());
  return fmt::format(" (p {}{}{}, {} examples)", p.starts_with("<") || p == "-" ? "" : "= ", p,
                     r["p_holm"].get<double>() < kReportedBelow ? " *" : "",
                     with_commas(r["p_examples"].get<int64_t>()));
}

// What slicing saves of the time of a forward pass, with its spread.
std::string time_text(const Json& r) {
  const auto percent = [](const Json& share) { return 100 * share.get<double>(); };
  const auto said = r["time_beyond_noise"].get<bool>()
                        ? fmt::format("{:.1f} % saved", percent(r["time_saved"]))
                        : std::string("no difference beyond noise");
  return fmt::format(
      "time of a forward pass at batch {}: {} (middle half of {} pairs: {:.1f} to {:.1f} %)\n",
      r["batch"].get<int64_t>(), said, r["time_pairs"].get<int64_t>(),
      percent(r["time_saved_quartiles"][0]), percent(r["time_saved_quartiles"][1]));
}

// What tuning alone does: the whole model's metrics beside the cut one's.
std::string uncut_text(const Json& r, const Task& task) {
  if (!r.contains("uncut")) return "";
  const auto& uncut = r["uncut"];
  if (uncut.contains("reason"))
    return fmt::format("the uncut model was not tuned as long: {}\n",
                       uncut["reason"].get<std::string>());
  std::vector<std::string> means;
  for (const auto& metric : task.metrics())
    means.push_back(fmt::format("{} {:.4f}, cut {:.4f}{}", metric.name,
                                uncut[metric.name].get<double>(), r[metric.name].get<double>(),
                                metric.units == "1" ? "" : " " + metric.units));
  return fmt::format("uncut, after as many updates of tuning ({}): {}\n",
                     uncut["updates"].get<int64_t>(), fmt::join(means, "; "));
}

// Those that have no head any more: "1", "cross/1".
std::vector<std::string> empty_layers(const SiteGrids& alive) {
  std::vector<std::string> names;
  for (const auto& [site, grid] : alive)
    for (int64_t layer = 0; layer < grid.size(0); ++layer)
      if (!grid[layer].any().item<bool>())
        names.push_back((alive.size() > 1 ? site + "/" : "") + std::to_string(layer));
  return names;
}

}  // namespace

Json pruning_json(const std::string& source, bool slice, const OpenedRun& run,
                  const Pruning& pruning) {
  const auto& rounds = pruning.rounds;
  const auto &first = rounds.front(), &last = rounds.back();
  Json report{{"run", std::filesystem::canonical(source).string()},
              {"step", run.step},
              {"kept", last.kept},
              {"removed", to_texts(removed_in(rounds))},
              {"alive", to_texts(heads_where(alive_heads(*run.model)))},
              {"empty_layers", empty_layers(alive_heads(*run.model))},
              {"sliced", slice}};
  for (const auto& [name, value] : pruning.effect.changes) report[name] = value;
  const auto& task = run.data->task();
  for (const auto& variable : significance_variables(task))
    report[variable.name] = variable.json(pruning.effect.significance);
  report["p_legend"] = significance_legend(task);
  for (const auto& mean : last.evaluation.means) {
    report[mean.name + "_before"] = first.evaluation.mean(mean.name);
    report[mean.name] = mean.value;
  }
  report.update(measured_json(last.evaluation));
  report["measured"] = measured_text(last.evaluation);
  if (pruning.kept) {
    auto& kept = report["on_whole_split"] = measured_json(pruning.kept->after);
    kept["measured"] = measured_text(pruning.kept->after);
    for (const auto& mean : pruning.kept->after.means) {
      kept[mean.name + "_before"] = pruning.kept->before.mean(mean.name);
      kept[mean.name] = mean.value;
    }
  }
  if (first.uncut) {
    auto& uncut = report["uncut"] = {{"updates", pruning.uncut_updates}};
    if (last.uncut)
      for (const auto& mean : last.uncut->means) uncut[mean.name] = mean.value;
    if (const auto& ended = pruning.uncut_ended) {
      uncut["status"] = run_state_name(ended->status.state);
      uncut["reason"] = ended->status.reason;
    }
  }
  report["parameters_before"] = first.parameters, report["parameters"] = last.parameters;
  report["flops_before"] = first.flops, report["flops"] = last.flops;
  report["flops_saved"] = 1 - last.flops / first.flops;
  report["masked_sliced_difference"] = pruning.effect.sliced_difference;
  report["batch"] = pruning.timed_examples;
  report["seconds_masked"] = pruning.time.masked, report["seconds_sliced"] = pruning.time.sliced;
  report["time_saved"] = pruning.time.share;
  report["time_saved_quartiles"] = {pruning.time.low, pruning.time.high};
  report["time_pairs"] = pruning.time.pairs;
  report["time_beyond_noise"] = pruning.time.beyond_noise();
  report["rounds"] = rounds_json(rounds);
  return report;
}

std::string pruning_text(const Json& r, const Task& task) {
  std::vector<Column> columns{{.title = "heads kept"}};
  for (const auto& metric : task.metrics()) columns.push_back({.title = metric.name});
  columns.insert(columns.end(), {{.title = "parameters"},
                                 {.title = "MFLOP/token", .format = "{:.3f}"},
                                 {.title = "removed", .is_text = true}});
  Table table(std::move(columns));
  for (const auto& round : r["rounds"]) {
    std::vector<Cell> cells{round["kept"].get<int64_t>()};
    for (const auto& metric : task.metrics()) cells.emplace_back(round[metric.name].get<double>());
    cells.emplace_back(round["parameters"].get<int64_t>());
    cells.emplace_back(round["flops_per_token"].get<double>() / 1e6);
    cells.emplace_back(words_of(round["removed"]));
    table.add(std::move(cells));
  }
  auto text = fmt::format("{}: {}\n{}", r["split"].get<std::string>(),
                          r["measured"].get<std::string>(), table.text());
  if (r.contains("ranking"))
    text +=
        fmt::format("ranked: {}{}\n", r["ranking"].get<std::string>(),
                    r.contains("ranked_on") ? "; on split " + r["ranked_on"].get<std::string>() +
                                                  ", judged on " + r["split"].get<std::string>()
                                            : "");
  text += uncut_text(r, task);
  if (const auto& empty = r["empty_layers"]; !empty.empty())
    text += fmt::format("no head is left in layer {} (--keep-per-layer 1 keeps one in each)\n",
                        fmt::join(empty.get<std::vector<std::string>>(), ", "));
  const auto n = [&](const char* name) { return r[name].get<double>(); };
  text += fmt::format("output: l2 {}, relative {}, cosine {}; logits: KL {}\n",
                      number_text(n("l2"), "{:.4g}"), number_text(n("relative"), "{:.4g}"),
                      number_text(n("cosine"), "{:.4f}"), number_text(n("kl"), "{:.4g} nat"));
  for (const auto& metric : task.metrics()) {
    text +=
        fmt::format("{} {}{}", metric.name, number_text(n(change_name(metric).c_str()), "{:+.4f}"),
                    metric.units == "1" ? "" : " " + metric.units);
    if (&metric == &task.metrics().front()) text += chance_text(r);
    text += ", ";
  }
  text +=
      fmt::format("over the {}\n{}\n", r["measured"].get<std::string>(), significance_legend(task));
  if (r.contains("on_whole_split")) {
    const auto& kept = r["on_whole_split"];
    const auto& loss = task.metrics().front();
    const auto of = kept["whole_split"].get<bool>()
                        ? fmt::format("whole split {}, {}", kept["split"].get<std::string>(),
                                      scored_text(kept["tokens"].get<int64_t>(),
                                                  kept["examples"].get<int64_t>()))
                        : kept["measured"].get<std::string>();
    text += fmt::format("over the {}: {} {:.4f} -> {:.4f}{}\n", of, loss.name,
                        kept[loss.name + "_before"].get<double>(), kept[loss.name].get<double>(),
                        loss.units == "1" ? "" : " " + loss.units);
  }
  return text + fmt::format("sliced against masked: logits {}, {} of FLOPs saved\n{}",
                            number_text(n("masked_sliced_difference"), "within {:.2e}"),
                            number_text(100 * n("flops_saved"), "{:.1f} %"), time_text(r));
}

void write_pruned(const std::filesystem::path& out, const OpenedRun& run,
                  const std::shared_ptr<Model>& model, const Pruning& pruning, const Json& report,
                  const at::Device& device, Tuning& tuning) {
  auto manifest = manifest_of(run, run.experiment, *model, device);
  manifest["pruned"] = report;
  const auto run_id = out.filename().string();
  const auto add_files = [&](const std::filesystem::path& making) {
    write_results(making / "pruning.h5",
                  root_attributes(run.experiment, "pruning", run_id, manifest),
                  pruning_groups(pruning.rounds, *model));
    replace_file(making / "pruning.csv", csv(report, run.data->task()));
  };
  if (tuning.kept()) {
    if (pruning.report.is_null()) {  // nothing of it is measured again
      const auto judged = pruning.kept.value().judged.validation_loss();
      tuning.keep("judged", judged ? metric_json(*judged) : nlohmann::ordered_json());
      tuning.keep("report", json_text(report));  // a text keeps the order of its keys
    }
    const auto judged = tuning.kept_value("judged");
    tuning.finish(run, model, judged.is_null() ? std::nullopt : std::optional(metric_value(judged)),
                  report, add_files);
    return;
  }
  const auto& kept = pruning.kept.value();
  const auto judged = kept.judged.validation_loss();
  write_run(out, run.experiment, run.data_description,
            untrained_checkpoint(*model, run.step, judged), manifest,
            status_metrics(kept.after, run.data->task()), add_files);
}

}  // namespace headlab
