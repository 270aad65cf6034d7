#include "experiments/benchmarks/bench_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "core/torch.h"
#include "experiments/runs/open_run.h"
#include "experiments/text/table.h"

namespace headlab {
namespace {

using BenchJson = nlohmann::ordered_json;

constexpr double kGiga = 1e9, kMebi = 1 << 20;
constexpr double kTaken = .01;  // share of waiting from which on others are said to have had cores

BenchJson number_json(double value) {
  return std::isfinite(value) ? BenchJson(value) : BenchJson();
}

BenchJson range_json(std::vector<double> values, double unit) {
  for (auto& value : values) value /= unit;
  const auto range = range_of(values);
  return {
      {"least", range.least}, {"median", range.median}, {"most", range.most}, {"rounds", values}};
}

double share_of_peak(const BenchFigure& figure, const BenchResults& results) {
  return figure.flops / range_of(figure.times.own).least / results.peak_flops();
}

BenchJson figure_json(const BenchFigure& figure, const BenchResults& results) {
  if (!figure.reason.empty()) return {{"reason", figure.reason}};
  constexpr double kMilli = 1e-3;
  const auto counted = [](double value) { return value > 0 ? BenchJson(value) : BenchJson(); };
  return {{"ms", range_json(figure.times.own, kMilli)},
          {"beside_ms", range_json(figure.times.beside, kMilli)},
          {"ratio", range_json(ratios_of(figure.times), 1)},
          {"flops", number_json(figure.flops)},
          {"share_of_peak", number_json(share_of_peak(figure, results))},
          {"peak_bytes", counted(static_cast<double>(figure.peak_bytes))},
          {"moved_bytes", counted(figure.moved_bytes)}};
}

BenchJson speed_json(const MachineSpeed& speed) {
  return {{"flops", speed.flops},
          {"type", speed.bf16 ? "bf16" : "fp32"},
          {"sizes", speed.sizes},
          {"bytes", speed.bytes}};
}

BenchJson machine_json(const BenchWork& work) {
  Experiment experiment;
  experiment.train.precision = work.setting.bf16 ? "bf16" : "fp32";
  const auto manifest = process_manifest(experiment, BenchJson::array(), work.setting.device);
  BenchJson machine;
  for (const char* key : {"start_utc", "git", "versions", "device", "cpu", "cpu_capability", "isa",
                          "gpus", "threads"})
    machine[key] = manifest.at(key);
  if (work.peers) machine["python_torch"] = work.peers->torch();
  return machine;
}

// A row's cells of one pass: least and median time, ratio and its range, share of the peak.
struct PassCells {
  Cell time, ratio, share;
};

PassCells cells_of(const BenchFigure& figure, const BenchResults& results) {
  if (!figure.reason.empty()) return {"n/a", "", ""};
  constexpr double kMilli = 1e3;
  const auto time = range_of(figure.times.own), ratio = range_of(ratios_of(figure.times));
  const double share = 100 * share_of_peak(figure, results);
  return {fmt::format("{:.3f} / {:.3f}", kMilli * time.least, kMilli * time.median),
          fmt::format("{:.2f} ({:.2f} to {:.2f})", ratio.median, ratio.least, ratio.most),
          std::isfinite(share) ? Cell(fmt::format("{:.0f} %", share)) : Cell()};
}

std::string whose(const BenchRow& row) {
  return (row.source == "python" ? "Python's " : "") + row.label;
}

Table table_of(const BenchTable& shape, const BenchWork& work, const BenchResults& results) {
  const auto right = [](const char* title) { return Column{.title = title}; };
  std::vector<Column> columns{{.title = "kind", .is_text = true},
                              {.title = "path", .is_text = true}};
  for (const char* title :
       {"forward [ms]", "of plain", "of peak", "both [ms]", "of plain", "of peak", "memory [MiB]"})
    columns.push_back(right(title));
  if (work.statistics) columns.push_back(right("statistics"));
  if (work.decode) columns.push_back(right("token [ms]")), columns.push_back(right("of plain"));
  Table table(columns);
  for (const auto& row : shape.rows) {
    std::vector<Cell> cells{whose(row), row.path};
    for (const auto pass : {BenchPass::kForward, BenchPass::kBoth}) {
      auto found = cells_of(row.figures.at(pass), results);
      cells.insert(cells.end(), {found.time, found.ratio, found.share});
    }
    const auto bytes = row.figures.at(BenchPass::kBoth).peak_bytes;
    cells.push_back(bytes > 0 ? Cell(fmt::format("{:.3g}", static_cast<double>(bytes) / kMebi))
                              : Cell());
    if (work.statistics)
      cells.push_back(cells_of(row.figures.at(BenchPass::kStatistics), results).ratio);
    if (work.decode) {
      auto found = cells_of(row.figures.at(BenchPass::kDecode), results);
      cells.insert(cells.end(), {found.time, found.ratio});
    }
    table.add(std::move(cells));
  }
  return table;
}

// The row of this program's layer of the kind on `auto`; null: there is none.
const BenchRow* own_row(const BenchTable& shape, const std::string& kind) {
  for (const auto& row : shape.rows)
    if (row.source == "headlab" && row.written == kind && row.path == "auto") return &row;
  return nullptr;
}

// A kind's time / that of Python's layer, from the ratios of both to plain heads in each round.
std::vector<double> beside_python(const BenchRow* own, const BenchRow& python, BenchPass pass) {
  const auto& theirs = python.figures.at(pass);
  if (!theirs.reason.empty() || !own || !own->figures.at(pass).reason.empty()) return {};
  auto ratios = ratios_of(own->figures.at(pass).times);
  const auto of_python = ratios_of(theirs.times);
  for (size_t n = 0; n < ratios.size(); ++n) ratios[n] /= of_python[n];
  return ratios;
}

// The other way round than in the table: this program's layers beside each of Python's.
std::string beside_python(const BenchTable& shape) {
  std::string lines;
  for (const auto& row : shape.rows) {
    if (row.source != "python") continue;
    std::string found;
    for (const auto pass : {BenchPass::kForward, BenchPass::kBoth}) {
      const auto ratios = beside_python(own_row(shape, row.kind), row, pass);
      if (ratios.empty()) continue;
      const auto ratio = range_of(ratios);
      found += fmt::format("{}{} {:.2f} ({:.2f} to {:.2f})", found.empty() ? "" : ", ",
                           name_of(pass), ratio.median, ratio.least, ratio.most);
    }
    if (!found.empty())
      lines += fmt::format("{0} / Python's {0}, {1}: {2}\n", row.kind, row.path, found);
  }
  return lines;
}

std::string name_of(const BenchRow& row) {
  return whose(row) + (row.source == "python" ? ", " : " on ") + row.path;
}

// Each reason once, with the rows that it is of; of a row that it is not all of, with the passes.
std::string reasons_of(const BenchTable& shape) {
  std::map<std::string, std::vector<std::string>> who;
  for (const auto& row : shape.rows) {
    std::map<std::string, std::vector<std::string>> passes;
    for (const auto& [pass, figure] : row.figures)
      if (!figure.reason.empty()) passes[figure.reason].emplace_back(name_of(pass));
    for (const auto& [reason, names] : passes)
      who[reason].push_back(names.size() == row.figures.size()
                                ? name_of(row)
                                : fmt::format("{} ({})", name_of(row), fmt::join(names, ", ")));
  }
  std::string lines;
  for (const auto& [reason, rows] : who)
    lines += fmt::format("n/a: {}: {}\n", fmt::join(rows, ", "), reason);
  return lines;
}

// The options of rows that are called by less.
std::string options_of(const BenchTable& shape) {
  std::map<std::string, std::string> written;
  for (const auto& row : shape.rows)
    if (row.label != row.written && !row.label.starts_with('{')) written[row.label] = row.written;
  std::string lines;
  for (const auto& [label, options] : written) lines += fmt::format("{} is {}\n", label, options);
  return lines;
}

std::string noise_of(const BenchTable& shape) {
  const double most = *std::max_element(shape.waited.begin(), shape.waited.end());
  if (most < kTaken)
    return fmt::format(
        "No other program took the cores: threads waited {:.1f} % of a round for "
        "them at most.\n",
        100 * most);
  return fmt::format(
      "Other programs took the cores: threads waited up to {:.0f} % of a round for "
      "them. Ratios that differ by less than their ranges are noise.\n",
      100 * most);
}

std::string heading_of(const BenchTable& shape, const BenchWork& work) {
  const auto& s = shape.shape;
  return fmt::format("{}: batch {}, {} tokens, width {}, {} heads; {}; {}", s.text(), s.batch,
                     s.tokens, s.width, s.heads, work.setting.attention,
                     work.setting.bf16 ? "bf16" : "fp32");
}

std::string machine_text(const BenchWork& work, const BenchResults& results) {
  const auto machine = machine_json(work);
  const auto name = machine["gpus"].empty() ? machine["cpu"] : machine["gpus"][0];
  const auto& git = machine["git"];
  return fmt::format(
      "{}, {} thread{}, commit {}, {}\n"
      "matrix products reach {:.1f} GFLOP/s before, {:.1f} after; copies {:.1f} GB/s before, "
      "{:.1f} "
      "after\n",
      name.is_string() ? name.get<std::string>() : "a processor that does not say its name",
      machine["threads"].get<int64_t>(), machine["threads"].get<int64_t>() == 1 ? "" : "s",
      git.is_object() ? git["commit"].get<std::string>().substr(0, 7) : "unknown",
      machine["start_utc"].get<std::string>(), results.before.flops / kGiga,
      results.after.flops / kGiga, results.before.bytes / kGiga, results.after.bytes / kGiga);
}

std::string legend_of(const BenchWork& work) {
  return fmt::format(
      "[ms]: least / median of {} rounds, each of which counts the shortest pass in {} s. of "
      "plain: "
      "time / time of mha on auto in the same round, median (least to most). of peak: FLOPs / "
      "least "
      "time / speed of matrix products. memory: most held in forward and backward beyond weights "
      "and input.{}{}\n",
      work.rounds, work.setting.seconds,
      work.statistics ? " statistics: time with all of them / without." : "",
      work.decode ? " token: the mean of the last ones of a text, with a cache." : "");
}

std::string tables_in(const BenchWork& work, const BenchResults& results, bool markdown) {
  std::string text = machine_text(work, results) + legend_of(work);
  for (const auto& shape : results.tables) {
    const auto table = table_of(shape, work, results);
    const auto notes =
        options_of(shape) + beside_python(shape) + reasons_of(shape) + noise_of(shape);
    text += fmt::format("\n{}{}\n\n{}\n", markdown ? "### " : "", heading_of(shape, work),
                        markdown ? table.markdown() : table.text());
    for (size_t at = 0; at < notes.size();) {
      const size_t end = notes.find('\n', at) + 1;
      text += (markdown ? "- " : "") + notes.substr(at, end - at);
      at = end;
    }
  }
  return text;
}

}  // namespace

BenchJson bench_json(const BenchWork& work, const BenchResults& results) {
  BenchJson object{{"machine", machine_json(work)},
                   {"attention", work.setting.attention},
                   {"precision", work.setting.bf16 ? "bf16" : "fp32"},
                   {"rounds", work.rounds},
                   {"seconds", work.setting.seconds},
                   {"peak",
                    {{"flops", results.peak_flops()},
                     {"bytes", results.peak_bytes()},
                     {"before", speed_json(results.before)},
                     {"after", speed_json(results.after)}}},
                   {"shapes", BenchJson::array()}};
  for (const auto& table : results.tables) {
    const auto& s = table.shape;
    BenchJson shape{{"shape", s.text()},         {"batch", s.batch}, {"tokens", s.tokens},
                    {"width", s.width},          {"heads", s.heads}, {"waited", table.waited},
                    {"rows", BenchJson::array()}};
    for (const auto& row : table.rows) {
      BenchJson found{{"source", row.source},
                      {"kind", row.kind},
                      {"label", row.label},
                      {"written", row.written},
                      {"path", row.path}};
      for (const auto& [pass, figure] : row.figures)
        found[name_of(pass)] = figure_json(figure, results);
      shape["rows"].push_back(std::move(found));
    }
    object["shapes"].push_back(std::move(shape));
  }
  return object;
}

std::string bench_text(const BenchWork& work, const BenchResults& results) {
  return tables_in(work, results, false);
}

std::string bench_markdown(const BenchWork& work, const BenchResults& results) {
  return tables_in(work, results, true);
}

}  // namespace headlab
