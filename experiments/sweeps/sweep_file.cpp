#include "experiments/sweeps/sweep_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "experiments/files/config_schema.h"

namespace headlab {
namespace {

using Kind = ConfigNode::Kind;
const std::vector<std::string> kSweepKeys{"base", "grid", "zip", "exclude"};

std::optional<double> number_in(const ConfigNode& node) {
  if (node.kind != Kind::kScalar || node.quoted) return std::nullopt;
  double value = 0;
  const char* end = node.text.data() + node.text.size();
  const auto [stop, error] = std::from_chars(node.text.data(), end, value);
  return stop == end && error == std::errc() ? std::optional(value) : std::nullopt;
}

// 1e-3 and 0.001 are one value.
bool same_value(const ConfigNode& a, const ConfigNode& b) {
  const auto x = number_in(a), y = number_in(b);
  return x && y ? *x == *y : a == b;
}

bool is_list(const ConfigNode& node, const std::string& path, Problems& problems) {
  if (node.kind == Kind::kSequence && !node.items.empty()) return true;
  problems.add(node.place, path, "must be a list of values, as in [1, 2, 3]");
  return false;
}

bool is_mapping(const ConfigNode& node, const std::string& path, Problems& problems) {
  if (node.kind == Kind::kMapping && !node.entries.empty()) return true;
  problems.add(node.place, path, "must be a mapping of keys to lists, as in {seed: [1, 2, 3]}");
  return false;
}

// The values of one key; none where they are wrong.
std::vector<ConfigNode> values_of(const std::string& section, const std::string& key,
                                  const ConfigNode& list, Problems& problems) {
  const std::string path = section + "." + key;
  if (!is_list(list, path, problems)) return {};
  std::vector<ConfigNode> values;
  for (size_t i = 0; i < list.items.size(); ++i) {
    ConfigNode value = list.items[i];
    if (value.kind == Kind::kNull)
      problems.add(value.place, fmt::format("{}[{}]", path, i), "a value is missing");
    if (section == "grid" &&
        std::any_of(values.begin(), values.end(),
                    [&](const ConfigNode& other) { return same_value(other, value); }))
      problems.add(value.place, fmt::format("{}[{}]", path, i),
                   fmt::format("{} stands there already", to_flow(value)));
    value.key_line = list.key_line, value.key_column = list.key_column;
    values.push_back(std::move(value));
  }
  return values;
}

void read_bases(const ConfigNode& file, SweepFile& sweep, Problems& problems) {
  const auto* base = file.find("base");
  if (base == nullptr)
    return problems.add(file.place, "base", "is missing; write base: <a config, or a list>");
  sweep.bases = base->kind == Kind::kSequence ? base->items : std::vector{*base};
  if (sweep.bases.empty()) problems.add(base->place, "base", "must name at least one config");
  for (size_t i = 0; i < sweep.bases.size(); ++i) {
    const auto& one = sweep.bases[i];
    if (one.kind != Kind::kScalar || one.text.empty())
      problems.add(one.place, "base", "must be the path of a config, or a list of paths");
    for (size_t j = 0; j < i; ++j)
      if (sweep.bases[j].text == one.text)
        problems.add(one.place, "base", fmt::format("{} is named twice", one.text));
  }
}

void read_grid(const ConfigNode& grid, SweepFile& sweep, Problems& problems) {
  if (!is_mapping(grid, "grid", problems)) return;
  for (const auto& [key, list] : grid.entries) {
    SweepAxis axis{.keys = {key}, .places = {}};
    for (auto& value : values_of("grid", key, list, problems))
      axis.places.push_back({std::move(value)});
    sweep.axes.push_back(std::move(axis));
  }
}

void read_zip(const ConfigNode& zip, SweepFile& sweep, Problems& problems) {
  if (!is_mapping(zip, "zip", problems)) return;
  SweepAxis axis;
  for (const auto& [key, list] : zip.entries) {
    auto values = values_of("zip", key, list, problems);
    if (values.empty()) continue;
    if (axis.places.empty()) axis.places.resize(values.size());
    if (values.size() != axis.places.size()) {
      problems.add(list.place, "zip." + key,
                   fmt::format("has {} values, {} has {}; lists of zip go together, one by one",
                               values.size(), axis.keys.front(), axis.places.size()));
      continue;
    }
    axis.keys.push_back(key);
    for (size_t i = 0; i < values.size(); ++i) axis.places[i].push_back(std::move(values[i]));
  }
  if (!axis.places.empty()) sweep.axes.push_back(std::move(axis));
}

// Keys that two axes would both set.
void check_keys_of(const ConfigNode& file, const SweepFile& sweep, Problems& problems) {
  const auto keys = sweep.keys();
  const auto place_of = [&](const std::string& key) {
    for (const char* section : {"zip", "grid"})
      if (const auto* mapping = file.find(section))
        if (const auto* value = mapping->find(key)) return value->key_place();
    return file.place;
  };
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] == "base")
      problems.add(place_of(keys[i]), keys[i], "is no setting; write base: [...] at the top");
    for (size_t j = 0; j < keys.size(); ++j) {
      if (i > j && keys[i] == keys[j])
        problems.add(place_of(keys[i]), keys[i], "stands in both grid and zip");
      if (keys[i].starts_with(keys[j] + "."))
        problems.add(
            place_of(keys[i]), keys[i],
            fmt::format("lies in {}, which changes too; write it into those values", keys[j]));
    }
  }
}

// What a key may be in an entry of `exclude`; none: there is no such key.
std::vector<ConfigNode> choices(const SweepFile& sweep, const std::string& key) {
  if (key == "base") return sweep.bases;
  std::vector<ConfigNode> values;
  for (const auto& axis : sweep.axes)
    for (size_t k = 0; k < axis.keys.size(); ++k)
      if (axis.keys[k] == key)
        for (const auto& place : axis.places) values.push_back(place[k]);
  return values;
}

void read_exclude(const ConfigNode& list, SweepFile& sweep, Problems& problems) {
  if (list.kind != Kind::kSequence)
    return problems.add(list.place, "exclude",
                        "must be a list of mappings, as in [{seed: 3, train.lr: 0.1}]");
  auto known = sweep.keys();
  known.push_back("base");
  for (size_t i = 0; i < list.items.size(); ++i) {
    const auto& entry = list.items[i];
    const auto path = fmt::format("exclude[{}]", i);
    if (entry.kind != Kind::kMapping || entry.entries.empty()) {
      problems.add(entry.place, path, "must be a mapping of keys to values");
      continue;
    }
    for (const auto& [key, value] : entry.entries) {
      const auto values = choices(sweep, key);
      const auto is_it = [&asked = value](const ConfigNode& one) { return same_value(one, asked); };
      const auto place = fmt::format("{}.{}", path, key);
      if (values.empty())
        problems.add(value.key_place(), place, "no axis has this key" + did_you_mean(key, known));
      else if (std::none_of(values.begin(), values.end(), is_it))
        problems.add(value.place, place, fmt::format("no point has the value {}", to_flow(value)));
    }
    sweep.exclude.push_back(entry.entries);
    sweep.exclude_places.push_back(entry.place);
  }
}

bool matches(const SweepPoint& point,
             const std::vector<std::pair<std::string, ConfigNode>>& entry) {
  return std::all_of(entry.begin(), entry.end(), [&](const auto& wanted) {
    if (wanted.first == "base") return same_value(point.base, wanted.second);
    return std::any_of(point.settings.begin(), point.settings.end(), [&](const auto& setting) {
      return setting.first == wanted.first && same_value(setting.second, wanted.second);
    });
  });
}

void require_few(const SweepFile& sweep) {
  size_t count = sweep.bases.size();
  for (const auto& axis : sweep.axes) {
    count *= axis.places.size();
    if (count <= kMaxSweepPoints) continue;
    Problems problems;
    problems.add(sweep.bases.front().place, "",
                 fmt::format("has more than {} points; write several sweeps", kMaxSweepPoints));
    problems.raise();
  }
}

std::vector<SweepPoint> all_points(const SweepFile& sweep) {
  std::vector<SweepPoint> points;
  for (const auto& base : sweep.bases) points.push_back({base, {}});
  for (const auto& axis : sweep.axes) {
    std::vector<SweepPoint> longer;
    for (const auto& point : points)
      for (const auto& place : axis.places) {
        auto& added = longer.emplace_back(point);
        for (size_t k = 0; k < axis.keys.size(); ++k)
          added.settings.emplace_back(axis.keys[k], place[k]);
      }
    points = std::move(longer);
  }
  return points;
}

}  // namespace

std::vector<std::string> SweepFile::keys() const {
  std::vector<std::string> all;
  for (const auto& axis : axes) all.insert(all.end(), axis.keys.begin(), axis.keys.end());
  return all;
}

SweepFile read_sweep(const ConfigNode& file) {
  Problems problems;
  SweepFile sweep;
  for (const auto& [key, value] : file.entries)
    if (std::find(kSweepKeys.begin(), kSweepKeys.end(), key) == kSweepKeys.end())
      problems.add(value.key_place(), key,
                   fmt::format("unknown key of a sweep{}", did_you_mean(key, kSweepKeys)));
  read_bases(file, sweep, problems);
  if (const auto* grid = file.find("grid")) read_grid(*grid, sweep, problems);
  if (const auto* zip = file.find("zip")) read_zip(*zip, sweep, problems);
  check_keys_of(file, sweep, problems);
  if (const auto* exclude = file.find("exclude")) read_exclude(*exclude, sweep, problems);
  problems.raise();
  return sweep;
}

std::string sweep_schema(Block& settings) {
  const SettingsSchema schema(settings);
  const auto described = [](SchemaJson json, const char* what) {
    json["description"] = what;
    return json;
  };
  const auto axes = [&](bool once, const char* what) {
    auto keys = schema.paths([once](SchemaJson value) {
      SchemaJson list{{"type", "array"}, {"items", std::move(value)}, {"minItems", 1}};
      if (once) list["uniqueItems"] = true;
      return list;
    });
    keys["minProperties"] = 1;
    return described(std::move(keys), what);
  };
  const SchemaJson path{{"type", "string"}, {"minLength", 1}};
  auto point = schema.paths([](SchemaJson value) { return value; });
  point["properties"]["base"] = path;
  point["minProperties"] = 1;
  return schema.file(
      {{"base", described(one_or_list("string", path), "the config of every point, or some")},
       {"grid", axes(true, "lists of values, of which all combinations are points")},
       {"zip", axes(false, "lists of as many values, which change together")},
       {"exclude", described({{"type", "array"}, {"items", std::move(point)}},
                             "points that match all of an entry are left out")}},
      {"base"});
}

std::vector<SweepPoint> points_of(const SweepFile& sweep) {
  require_few(sweep);
  auto points = all_points(sweep);
  Problems problems;
  for (size_t i = 0; i < sweep.exclude.size(); ++i) {
    const auto of_entry = [&](const SweepPoint& point) { return matches(point, sweep.exclude[i]); };
    if (std::none_of(points.begin(), points.end(), of_entry))
      problems.add(sweep.exclude_places[i], fmt::format("exclude[{}]", i),
                   "matches no point that those before it leave");
    std::erase_if(points, of_entry);
  }
  if (points.empty()) problems.add(sweep.exclude_places.back(), "exclude", "leaves no point");
  problems.raise();
  return points;
}

}  // namespace headlab
