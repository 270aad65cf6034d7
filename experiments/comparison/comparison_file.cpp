#include "experiments/comparison/comparison_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "experiments/files/config_schema.h"

namespace headlab {
namespace {

using Kind = ConfigNode::Kind;
using Keys = std::vector<std::string>;

const Keys kComparisonKeys{"tasks", "kinds",   "rates", "choose_seeds",
                           "seeds", "lengths", "match", "baseline"};
const Keys kRateKeys{"from", "factor", "most"};
const Keys kTaskKeys{"name", "base", "set", "kinds", "rates", "choose_at", "match"};
const Keys kArmKeys{"name", "attention", "set"};
const Limits kShare{.min = 0, .max = 1, .above_min = true, .below_max = false, .one_of = {}};
constexpr std::array kMatches{Match::kHiddenWidth, Match::kHeadDim, Match::kFlops, Match::kNone};
constexpr const char* kUsualBaseline = "mha";

void known_keys(const ConfigNode& mapping, const std::string& path, const std::string& owner,
                const Keys& keys, Problems& problems) {
  for (const auto& [key, value] : mapping.entries)
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      problems.add(value.key_place(), path.empty() ? key : fmt::format("{}.{}", path, key),
                   fmt::format("unknown key of {}{}; there are {}", owner, did_you_mean(key, keys),
                               fmt::join(keys, ", ")));
}

// The list under a key that must be there.
const ConfigNode* list_of(const ConfigNode& file, const char* key, const char* example,
                          Problems& problems) {
  const auto* list = file.find(key);
  if (list && list->kind == Kind::kSequence && !list->items.empty()) return list;
  if (list)
    problems.add(list->place, key, fmt::format("must be a list, as in {}", example));
  else
    problems.add(file.place, key, fmt::format("is missing; write {}: {}", key, example));
  return nullptr;
}

// Numbers of a list, or one alone, each once.
template <class Number>
std::vector<Number> numbers_of(const ConfigNode& node, const std::string& path,
                               const Limits& limits, Problems& problems) {
  const auto& items = node.kind == Kind::kSequence ? node.items : std::vector{node};
  if (items.empty()) problems.add(node.place, path, "must have at least one number");
  std::vector<Number> numbers;
  for (size_t i = 0; i < items.size(); ++i) {
    const auto where = items.size() == 1 ? path : fmt::format("{}[{}]", path, i);
    Number number{};
    if (!read_value(number, items[i], where, problems, limits)) continue;
    if (std::find(numbers.begin(), numbers.end(), number) != numbers.end())
      problems.add(items[i].place, where, fmt::format("{} stands there already", items[i].text));
    numbers.push_back(number);
  }
  return numbers;
}

// A list of rates, or where a search begins: {from: 2.0e-3, factor: 2, most: 7}.
void read_rates(const ConfigNode& node, const std::string& path, ComparisonTask& task,
                Problems& problems) {
  if (node.kind != Kind::kMapping) {
    task.rates = numbers_of<double>(node, path, above(0), problems);
    std::sort(task.rates.begin(), task.rates.end());
    return;
  }
  known_keys(node, path, "a search for rates", kRateKeys, problems);
  RateGrid grid;
  const auto* from = node.find("from");
  if (!from) problems.add(node.place, path + ".from", "is missing; write from: 1.0e-3");
  if (from) read_value(grid.from, *from, path + ".from", problems, above(0));
  if (const auto* factor = node.find("factor"))
    read_value(grid.factor, *factor, path + ".factor", problems, above(1));
  if (const auto* most = node.find("most"))
    read_value(grid.most, *most, path + ".most", problems, at_least(3));
  task.search = grid;
  task.choose_at = 1;
}

NamedSettings settings_of(const ConfigNode& set, const std::string& path, Problems& problems) {
  if (set.kind != Kind::kMapping) {
    problems.add(set.place, path, "must be a mapping of settings, as in {model.heads: 1}");
    return {};
  }
  for (const auto& [key, value] : set.entries) {
    const auto where = fmt::format("{}.{}", path, key);
    if (key == "seed")
      problems.add(value.key_place(), where, "is set by the comparison; write `seeds`");
    if (key == "train.lr")
      problems.add(value.key_place(), where, "is chosen for each arm; write `rates`");
    if (value.kind == Kind::kNull) problems.add(value.place, where, "a value is missing");
  }
  return set.entries;
}

void check_name(const std::string& name, const Place& place, const std::string& path,
                const Keys& names, Problems& problems) {
  if (name.empty() || name.find_first_of("|\n\t") != name.npos)
    problems.add(place, path, "must be a name without |, tabs and line breaks");
  if (std::find(names.begin(), names.end(), name) != names.end())
    problems.add(place, path, fmt::format("'{}' stands there already; give it a `name`", name));
}

Match match_of(const ConfigNode& node, const std::string& path, Problems& problems) {
  std::vector<std::string> names;
  for (const auto match : kMatches) names.push_back(match_name(match));
  std::string word;
  if (!read_value(word, node, path, problems, one_of(names))) return Match::kHiddenWidth;
  return kMatches[std::find(names.begin(), names.end(), word) - names.begin()];
}

ComparisonTask task_of(const ConfigNode& node, const std::string& path, Problems& problems) {
  ComparisonTask task;
  const bool mapping = node.kind == Kind::kMapping;
  if (mapping) known_keys(node, path, "a task", kTaskKeys, problems);
  const auto* base = mapping ? node.find("base") : &node;
  if (base == nullptr || base->kind != Kind::kScalar || base->text.empty()) {
    problems.add(base ? base->place : node.place, path,
                 "must be the path of a config, or {name: ..., base: <that path>, set: {...}}");
    return task;
  }
  task.base = *base;
  task.name = std::filesystem::path(base->text).stem().string();
  if (!mapping) return task;
  if (const auto* name = node.find("name")) read_value(task.name, *name, path + ".name", problems);
  if (const auto* set = node.find("set"))
    task.settings = settings_of(*set, path + ".set", problems);
  if (const auto* rates = node.find("rates")) read_rates(*rates, path + ".rates", task, problems);
  if (const auto* match = node.find("match"))
    task.match = match_of(*match, path + ".match", problems);
  if (const auto* share = node.find("choose_at"))
    read_value(task.choose_at, *share, path + ".choose_at", problems, kShare);
  return task;
}

ComparisonArm arm_of(const ConfigNode& node, const std::string& path, Problems& problems) {
  if (node.kind == Kind::kScalar) return {node.text, {{"model.attention", node}}};
  const auto* name = node.find("name");
  if (name == nullptr) {
    problems.add(node.place, path,
                 "must be a kind of heads, or {name: ..., attention: {...}, set: {a.b: value}}");
    return {};
  }
  ComparisonArm arm;
  known_keys(node, path, "an arm", kArmKeys, problems);
  read_value(arm.name, *name, path + ".name", problems);
  if (const auto* attention = node.find("attention"))
    arm.settings.emplace_back("model.attention", *attention);
  if (const auto* set = node.find("set")) {
    const auto settings = settings_of(*set, path + ".set", problems);
    arm.settings.insert(arm.settings.end(), settings.begin(), settings.end());
  }
  return arm;
}

// The items of the list under a key, which have different names; `names` takes these.
template <class Item>
std::vector<Item> named_items(const ConfigNode& file, const char* key, const char* example,
                              Item (*item_of)(const ConfigNode&, const std::string&, Problems&),
                              Keys& names, Problems& problems) {
  const auto* list = list_of(file, key, example, problems);
  std::vector<Item> items;
  for (size_t i = 0; list && i < list->items.size(); ++i) {
    const auto path = fmt::format("{}[{}]", key, i);
    items.push_back(item_of(list->items[i], path, problems));
    check_name(items.back().name, list->items[i].place, path, names, problems);
    names.push_back(items.back().name);
  }
  return items;
}

void read_tasks(const ConfigNode& file, ComparisonFile& comparison, Problems& problems) {
  Keys names;
  comparison.tasks = named_items(file, "tasks", "[char_mha.yaml]", task_of, names, problems);
  ComparisonTask of_all;
  if (const auto* general = file.find("rates")) read_rates(*general, "rates", of_all, problems);
  auto match = Match::kHiddenWidth;
  if (const auto* general = file.find("match")) match = match_of(*general, "match", problems);
  for (size_t i = 0; i < comparison.tasks.size(); ++i) {
    auto& task = comparison.tasks[i];
    const auto& node = file.find("tasks")->items[i];
    if (task.rates.empty() && !task.search) {
      task.rates = of_all.rates, task.search = of_all.search;
      if (task.search && !(node.kind == Kind::kMapping && node.find("choose_at")))
        task.choose_at = of_all.choose_at;
    }
    if (node.kind != Kind::kMapping || !node.find("match")) task.match = match;
    if (task.rates.empty() && !task.search && !file.find("rates"))
      problems.add(node.place, fmt::format("tasks[{}]", i),
                   "has no learning rates; write rates: [5.0e-4, 1.0e-3, 2.0e-3] at the top, or in "
                   "the task");
  }
}

void read_arms(const ConfigNode& file, ComparisonFile& comparison, Problems& problems) {
  Keys names;
  comparison.arms = named_items(file, "kinds", "[mha, {name: one head, set: {model.heads: 1}}]",
                                arm_of, names, problems);
  const auto* baseline = file.find("baseline");
  std::string name = kUsualBaseline;
  if (baseline && !read_value(name, *baseline, "baseline", problems)) return;
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end())
    comparison.baseline = static_cast<size_t>(found - names.begin());
  else if (baseline)
    problems.add(baseline->place, "baseline",
                 fmt::format("no arm is called '{}'{}", name, did_you_mean(name, names)));
}

// The arms that a task takes, by their names in the file; the baseline is among them.
void read_kinds_of_tasks(const ConfigNode& file, ComparisonFile& comparison, Problems& problems) {
  Keys names;
  for (const auto& arm : comparison.arms) names.push_back(arm.name);
  for (size_t i = 0; i < comparison.tasks.size() && !names.empty(); ++i) {
    const auto* kinds = file.find("tasks")->items[i].find("kinds");
    if (!kinds) continue;
    const auto path = fmt::format("tasks[{}].kinds", i);
    auto& taken = comparison.tasks[i].kinds;
    if (kinds->kind != Kind::kSequence || kinds->items.empty())
      problems.add(kinds->place, path, "must be a list of names of the file's `kinds`");
    for (const auto& item : kinds->items) {
      if (std::find(names.begin(), names.end(), item.text) == names.end())
        problems.add(
            item.place, path,
            fmt::format("no arm is called '{}'{}", item.text, did_you_mean(item.text, names)));
      taken.push_back(item.text);
    }
    const auto& baseline = names[comparison.baseline];
    if (!taken.empty() && !comparison.tasks[i].takes(baseline))
      problems.add(kinds->place, path, fmt::format("must have the baseline, '{}'", baseline));
  }
}

void read_seeds(const ConfigNode& file, ComparisonFile& comparison, Problems& problems) {
  const auto read = [&](const char* key) {
    const auto* node = file.find(key);
    return node ? numbers_of<int64_t>(*node, key, at_least(0), problems) : std::vector<int64_t>{};
  };
  comparison.seeds = read("seeds"), comparison.choose_seeds = read("choose_seeds");
  const auto* seeds = file.find("seeds");
  if (comparison.seeds.size() < 2)
    problems.add(seeds ? seeds->place : file.place, "seeds",
                 "must be at least two, for a difference has no interval without; five are usual: "
                 "seeds: [1, 2, 3, 4, 5]");
  const auto* choose = file.find("choose_seeds");
  for (const auto seed : comparison.choose_seeds)
    if (std::find(comparison.seeds.begin(), comparison.seeds.end(), seed) != comparison.seeds.end())
      problems.add(choose->place, "choose_seeds",
                   fmt::format("{} is one of seeds: a rate that is chosen on a seed fits it better "
                               "than others; take another one",
                               seed));
  if (!choose && std::any_of(comparison.tasks.begin(), comparison.tasks.end(),
                             [](const ComparisonTask& task) { return task.chooses(); }))
    problems.add(file.place, "choose_seeds",
                 "is missing; write choose_seeds: <a seed that is none of seeds>");
}

void read_lengths(const ConfigNode& file, ComparisonFile& comparison, Problems& problems) {
  const auto* lengths = file.find("lengths");
  if (!lengths) return;
  comparison.lengths = numbers_of<double>(*lengths, "lengths", kShare, problems);
  std::sort(comparison.lengths.begin(), comparison.lengths.end());
  if (comparison.lengths.empty() || comparison.lengths.back() != 1)
    problems.add(lengths->place, "lengths",
                 "must end with 1, the whole training; write lengths: [0.25, 0.5, 1]");
}

}  // namespace

std::string match_name(Match match) {
  constexpr std::array kNames{"d_ff", "head_dim", "flops", "none"};
  return kNames.at(static_cast<size_t>(match));
}

int64_t ComparisonTask::share_of(double share, int64_t steps) {
  return std::max(static_cast<int64_t>(share * static_cast<double>(steps)), int64_t{1});
}

std::string comparison_schema(Block& settings) {
  const SettingsSchema schema(settings);
  const SchemaJson text{{"type", "string"}, {"minLength", 1}};
  const SchemaJson seed{{"type", "integer"}, {"minimum", 0}};
  const SchemaJson rate{{"type", "number"}, {"exclusiveMinimum", 0}};
  const auto search = object_schema({{"from", rate},
                                     {"factor", {{"type", "number"}, {"exclusiveMinimum", 1}}},
                                     {"most", {{"type", "integer"}, {"minimum", 3}}}},
                                    {"from"});
  const SchemaJson share{{"type", "number"}, {"exclusiveMinimum", 0}, {"maximum", 1}};
  const auto rates =
      schema_by_type({{"number", rate},
                      {"array", {{"type", "array"}, {"items", rate}, {"minItems", 1}}},
                      {"object", search}});
  SchemaJson match{{"type", "string"}, {"enum", SchemaJson::array()}};
  for (const auto one : kMatches) match["enum"].push_back(match_name(one));
  auto set = schema.paths([](SchemaJson value) { return value; });
  for (const char* own : {"seed", "train.lr"}) set["properties"].erase(own);  // of the comparison
  const auto task = object_schema({{"name", text},
                                   {"base", text},
                                   {"set", set},
                                   {"kinds", {{"type", "array"}, {"items", text}, {"minItems", 1}}},
                                   {"rates", rates},
                                   {"choose_at", share},
                                   {"match", match}},
                                  {"base"});
  const auto attention = schema.at("model.attention");
  const auto arm =
      object_schema({{"name", text}, {"attention", attention}, {"set", set}}, {"name"});
  const auto list = [](const SchemaJson& items, int64_t least) {
    return SchemaJson{{"type", "array"}, {"items", items}, {"minItems", least}};
  };
  return schema.file({{"tasks", list(schema_by_type({{"string", text}, {"object", task}}), 1)},
                      {"kinds", list(schema_by_type({{"string", attention}, {"object", arm}}), 1)},
                      {"rates", rates},
                      {"choose_seeds", one_or_list("number", seed)},
                      {"seeds", list(seed, 2)},
                      {"lengths", one_or_list("number", share)},
                      {"match", match},
                      {"baseline", text}},
                     {"tasks", "kinds", "seeds"});
}

ComparisonFile read_comparison(const ConfigNode& file) {
  Problems problems;
  ComparisonFile comparison;
  known_keys(file, "", "a comparison", kComparisonKeys, problems);
  read_tasks(file, comparison, problems);
  read_arms(file, comparison, problems);
  read_kinds_of_tasks(file, comparison, problems);
  read_seeds(file, comparison, problems);
  read_lengths(file, comparison, problems);
  problems.raise();
  return comparison;
}

}  // namespace headlab
