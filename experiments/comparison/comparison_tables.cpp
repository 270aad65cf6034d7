// The tables of a comparison as CSV and as LaTeX.
#include "experiments/comparison/comparison_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include "experiments/files/json_text.h"
#include "experiments/measuring/paired.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/text/csv_line.h"
#include "experiments/text/with_commas.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

// --- CSV -------------------------------------------------------------------------------------

using NamedCells = std::vector<std::pair<std::string, std::string>>;

std::string csv_value(const Json& value) {
  if (value.is_null()) return "";
  return value.is_string() ? value.get<std::string>() : json_text(value);
}

std::string joined(const std::vector<std::string>& texts) {
  return fmt::format("{}", fmt::join(texts, "; "));
}

// What all runs of an arm have in common, or each of what they have.
void add_run_cells(NamedCells& cells, const std::string& name, const Json& runs) {
  for (const char* key : {"commit", "machine", "device"}) {
    std::vector<std::string> texts;
    for (const auto& run : runs)
      if (const auto text = csv_value(run.value(key, Json()));
          std::ranges::find(texts, text) == texts.end())
        texts.push_back(text);
    cells.emplace_back(fmt::format("{}.{}", name, key), joined(texts));
  }
}

// Lists that are single values: an interval, sentences, a value a seed; and of runs what they ran
// on. Others are left out.
void add_list_cells(NamedCells& cells, const std::string& name, const std::string& key,
                    const Json& list, const std::vector<std::string>& seeds) {
  if ((key == "interval" || key == "bootstrap") && list.size() == 2) {
    const auto place = key == "interval" ? name.substr(0, name.size() - key.size()) : name + ".";
    cells.emplace_back(place + "low", csv_value(list[0]));
    cells.emplace_back(place + "high", csv_value(list[1]));
  } else if (key == "notices") {
    std::vector<std::string> texts;
    for (const auto& notice : list) texts.push_back(csv_value(notice));
    cells.emplace_back(name, joined(texts));
  } else if (key == "runs") {
    add_run_cells(cells, name, list);
  } else if (list.size() == seeds.size() &&
             std::ranges::none_of(list, [](const Json& one) { return one.is_structured(); })) {
    for (size_t i = 0; i < seeds.size(); ++i)
      cells.emplace_back(fmt::format("{}.{}", name, seeds[i]), csv_value(list[i]));
  }
}

void add_csv_cells(NamedCells& cells, const std::string& prefix, const Json& object,
                   const std::vector<std::string>& seeds) {
  for (const auto& [key, value] : object.items()) {
    const auto name = prefix + key;
    if (key == "lengths") {  // lengths.0.5.val/loss.1: that of seed 1 after half of the steps
      for (const auto& one : value)
        for (const auto& [measure, values] : one.items())
          if (measure.ends_with("/loss"))
            add_list_cells(cells,
                           fmt::format("{}.{}.{}", name, csv_value(one.at("length")), measure),
                           measure, values, seeds);
    } else if (value.is_object()) {
      add_csv_cells(cells, key == "metrics" ? prefix : name + ".", value, seeds);
    } else if (value.is_array()) {
      add_list_cells(cells, name, key, value, seeds);
    } else {
      cells.emplace_back(name, csv_value(value));
    }
  }
}

// --- LaTeX -----------------------------------------------------------------------------------

// Columns of compare.md that a paper's table does without.
constexpr std::array<std::string_view, 10> kNotInPapers{"d_ff",
                                                        "head_dim",
                                                        "p",
                                                        "p, Fisher",
                                                        "p, log-rank",
                                                        "time",
                                                        "entropy [nat]",
                                                        "largest logit",
                                                        "first-token share",
                                                        "heads that survive pruning"};

bool is_digit_at(const std::string& text, size_t at) {
  return at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) != 0;
}

// As LaTeX sets it in text: nothing of it is a command, and a sign before a number is a minus.
std::string latex_text(const std::string& text) {
  std::string latex;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (text.compare(at, 2, "±") == 0) {
      latex += "$\\pm$";
      ++at;
    } else if (std::string_view("&%$#_{}").find(c) != std::string_view::npos) {
      latex += std::string("\\") + c;
    } else if (c == '\\') {
      latex += "\\textbackslash{}";
    } else if (c == '~' || c == '^') {
      latex += std::string("\\") + c + "{}";
    } else if (c == '<' || c == '>' || c == '|') {
      latex += std::string("$") + c + "$";
    } else if (c == '[' || c == '*') {  // an option of the end of the row before
      latex += std::string("{") + c + "}";
    } else if (c == '-' && is_digit_at(text, at + 1) &&
               (at == 0 || text[at - 1] == ' ' || text[at - 1] == '[')) {
      latex += "$-$";
    } else {
      latex += c;
    }
  }
  return latex;
}

// A cell that says why there is no figure would be as wide as the page: the caption says it.
std::string latex_cell(const std::string& cell) {
  constexpr std::string_view kStar = " *";
  if (cell == "-" || cell.starts_with("- (")) return "--";
  if (cell.ends_with(kStar))
    return latex_text(cell.substr(0, cell.size() - kStar.size())) + "$^{*}$";
  return latex_text(cell);
}

// Words in lines of about 16 characters.
std::vector<std::string> wrapped(const std::string& text) {
  constexpr size_t kWide = 16;
  std::vector<std::string> lines{""};
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    if (!lines.back().empty() && lines.back().size() + 1 + end - at > kWide) lines.emplace_back();
    lines.back() += (lines.back().empty() ? "" : " ") + text.substr(at, end - at);
    at = end + 1;
  }
  return lines;
}

// A line for each of its parts, and more where it is longer than the figures below it.
std::string latex_head(const std::string& title) {
  const bool listed = title.find(", ") != title.npos;
  std::vector<std::string> lines;
  for (size_t at = 0; at <= title.size();) {
    const size_t end = std::min(title.find(listed ? ", " : " [", at), title.size());
    const size_t stop = std::min(end + (listed ? 1 : 0), title.size());  // the comma stays
    for (const auto& line : wrapped(title.substr(at, stop - at))) lines.push_back(latex_text(line));
    at = end + (listed ? 2 : 1);
  }
  if (lines.size() == 1) return lines[0];
  return fmt::format("\\shortstack{{{}}}", fmt::join(lines, "\\\\"));
}

std::string latex_row(const std::vector<std::string>& cells) {
  return fmt::format("{} \\\\\n", fmt::join(cells, " & "));
}

std::string label_word(const std::string& name) {
  std::string word;
  for (const char c : name) word += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '-';
  return word;
}

std::string joined(const std::set<std::string>& words) {
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string text_in(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() && found->is_string()
             ? found->get<std::string>()
             : "";
}

// By which commits and on which machines the runs of a task were trained.
std::string origin_text(const Json& task) {
  constexpr size_t kShort = 8;  // digits of a commit
  std::set<std::string> commits, machines, devices;
  for (const auto& arm : task.at("arms"))
    for (const auto& run : arm.value("runs", Json::array())) {
      const auto folder = text_in(run, "run");
      const auto manifest = folder.empty() ? Json() : read_manifest(folder);
      const auto git = manifest.is_object() ? manifest.value("git", Json()) : Json();
      auto commit = text_in(run, "commit"), machine = text_in(run, "machine");
      if (commit.empty()) commit = text_in(git, "commit");
      if (machine.empty()) machine = text_in(manifest, "cpu");
      if (!commit.empty()) commits.insert(commit.substr(0, kShort));
      if (!machine.empty()) machines.insert(machine);
      if (const auto device = text_in(run, "device"); !device.empty()) devices.insert(device);
    }
  std::string text = commits.empty() ? "By a commit that is not known"
                                     : fmt::format("By commit {}", joined(commits));
  text += machines.empty() ? ", on a machine that is not known"
                           : fmt::format(", on {}", joined(machines));
  return text + (devices.empty() ? "" : fmt::format(" ({})", joined(devices)));
}

std::string count_in(const Json& measured, const char* key) {
  const auto found = measured.find(key);
  return found != measured.end() && found->is_number()
             ? with_commas(static_cast<int64_t>(found->get<double>()))
             : "?";
}

std::string length_text(const Json& task) {
  std::set<int64_t> steps;
  for (const auto& arm : task.at("arms"))
    if (arm.contains("steps")) steps.insert(arm["steps"].get<int64_t>());
  std::vector<std::string> texts;
  for (const auto count : steps) texts.push_back(with_commas(count));
  return texts.empty() ? "?" : fmt::format("{}", fmt::join(texts, " or "));
}

// By what the arms are compared.
std::string statistics_text(const Json& object, const Json& task) {
  const auto baseline = text_in(object, "baseline");
  const auto statistics = task.value("statistics", Json::object());
  const auto solved = statistics.value("solved", Json());
  if (!solved.is_object())
    return fmt::format("mean paired difference to {} with its 95 % interval", baseline);
  return fmt::format("seeds that solved it ({}: {}) and updates until then, tested against {}",
                     text_in(solved, "metric"), json_text(solved.value("at", Json())), baseline);
}

std::string caption_text(const Json& object, const Json& task) {
  const auto& measured = task.at("measured_on");
  std::vector<std::string> seeds;
  for (const auto& seed : object.at("seeds")) seeds.push_back(json_text(seed));
  const bool whole = measured.contains("whole_split") && measured["whole_split"].is_number() &&
                     measured["whole_split"].get<double>() == 1;
  auto text = fmt::format(
      "Arms on {}: mean ± standard deviation over {} seeds ({}), and {}. Measured on the {}{} "
      "split, {} examples, {} scored targets, after {} updates. *: p is below {} after Holm's "
      "correction. {}.",
      text_in(task, "name"), seeds.size(), fmt::join(seeds, ", "), statistics_text(object, task),
      whole ? "whole " : "", text_in(measured, "split"), count_in(measured, "examples"),
      count_in(measured, "tokens"), length_text(task), kReportedBelow, origin_text(task));
  for (const auto& arm : task.at("arms"))
    if (const auto reason = text_in(arm, "reason"); !reason.empty())
      text += fmt::format(" {} has no figures: {}.", text_in(arm, "name"), reason);
  return latex_text(text);
}

std::string table_latex(const std::string& caption, const std::string& label,
                        const TaskTable& table) {
  std::vector<size_t> columns;
  for (size_t i = 0; i < table.head.size(); ++i)
    if (std::ranges::find(kNotInPapers, table.head[i]) == kNotInPapers.end()) columns.push_back(i);
  std::vector<std::string> head;
  for (const auto i : columns) head.push_back(latex_head(table.head[i]));
  auto text = fmt::format(
      "\\begin{{table*}}\n\\centering\\footnotesize\\setlength{{\\tabcolsep}}{{4pt}}\n"
      "\\caption{{{}}}\n\\label{{{}}}\n\\begin{{tabular}}{{l{}}}\n\\toprule\n{}\\midrule\n",
      caption, label, std::string(columns.empty() ? 0 : columns.size() - 1, 'r'), latex_row(head));
  for (const auto& row : table.rows) {
    std::vector<std::string> cells;
    for (const auto i : columns) cells.push_back(latex_cell(row.at(i)));
    text += latex_row(cells);
  }
  return text + "\\bottomrule\n\\end{tabular}\n\\end{table*}\n";
}

}  // namespace

std::string spread_cell(const Spread& spread) {
  return fmt::format("{:.4f} ± {:.4f}", spread.mean, spread.deviation.value_or(0));
}

std::string comparison_csv(const Json& object) {
  std::vector<std::string> seeds, names;
  for (const auto& seed : object.at("seeds")) seeds.push_back(json_text(seed));
  std::vector<NamedCells> rows;
  for (const auto& task : object.at("tasks"))
    for (const auto& arm : task.at("arms")) {
      auto& row = rows.emplace_back();
      row.emplace_back("task", text_in(task, "name"));
      add_csv_cells(row, "", arm, seeds);
      row[1].first = "arm";  // its name
      for (const auto& [name, cell] : row)
        if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  auto text = csv_line(names);
  for (const auto& row : rows) {
    std::vector<std::string> cells;
    for (const auto& name : names) {
      const auto found = std::ranges::find(row, name, &NamedCells::value_type::first);
      cells.push_back(found == row.end() ? "" : found->second);
    }
    text += csv_line(cells);
  }
  return text;
}

std::string comparison_latex(const Json& object, const std::vector<TaskTable>& tables) {
  const auto name = std::filesystem::path(text_in(object, "comparison")).filename().string();
  auto text = fmt::format(
      "% {}, written by headlab compare. The preamble needs \\usepackage{{booktabs}}.\n",
      label_word(name));
  for (size_t t = 0; t < tables.size(); ++t) {
    const auto& task = object.at("tasks").at(t);
    text += "\n" + table_latex(caption_text(object, task),
                               fmt::format("tab:{}-{}", label_word(name),
                                           label_word(text_in(task, "name"))),
                               tables[t]);
  }
  return text;
}

}  // namespace headlab
