#include "experiments/models/layer_positions.h"

#include <fmt/format.h>

#include <charconv>

#include "experiments/files/config_file.h"

namespace headlab {
namespace {

Limits position_words() {
  return one_of({"learned", "sinusoidal", "rope", "alibi", "relative", "none"});
}

ConfigNode kind_alone(const std::string& kind, const Place& place) {
  ConfigNode node;
  node.set("kind", write_text(kind));
  node.place = place;
  return node;
}

bool read_number(const std::string& text, int64_t& number) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc{} && stop == end && number >= 0;
}

// "3" or "2-5" -> first, last.
bool read_range(const std::string& key, int64_t& first, int64_t& last) {
  const size_t dash = key.find('-');
  if (!read_number(key.substr(0, dash), first)) return false;
  if (dash == std::string::npos) return last = first, true;
  return read_number(key.substr(dash + 1), last) && last >= first;
}

}  // namespace

bool LayerRange::read(const ConfigNode& written, const std::string& path, Problems& problems) {
  if (read_range(key, first, last)) return true;
  problems.add(written.key_place(), path, "must be a layer (\"3\") or a range of layers (\"2-5\")");
  return false;
}

void check_end(const std::string& field, const LayerRange& range, int64_t layers,
               const Complain& complain) {
  if (range.last >= layers)
    complain(field + "." + range.key, fmt::format("there are only layers 0 to {}", layers - 1));
}

void check_apart(const std::string& field, const LayerRange& range, const LayerRange& before,
                 const Complain& complain) {
  if (range.first <= before.last && before.first <= range.last)
    complain(field + "." + range.key, fmt::format("overlaps \"{}\"", before.key));
}

void PositionOption::Settings::visit(Fields& f) {
  f("kind", kind, "how tokens know their place", position_words());
  if (kind == "rope") {
    f("base", base, "base of the rotation's wavelengths", above(1));
    f("layout", layout, "which features of a head form a pair", one_of({"half", "interleaved"}));
    f("fraction", fraction, "share of a head's features that rotate", between(0, 1));
  }
  if (kind == "relative") {
    f("buckets", buckets, "distances that are told apart", between(4, 1 << 20));
    f("max_distance", max_distance, "distance from which all share a bucket", at_least(2));
  }
}

void PositionOption::Settings::check(const Complain& complain) const {
  if (kind == "relative" && max_distance <= buckets / 2)
    complain("max_distance", fmt::format("must be above {}, half the buckets", buckets / 2));
}

void PositionOption::read(const ConfigNode& node, const std::string& path, Problems& problems) {
  if (node.kind == ConfigNode::Kind::kMapping)
    read_block(settings_, node, path, problems);
  else
    read_value(settings_.kind, node, path, problems, position_words());
}

ConfigNode PositionOption::write() const {
  Settings settings = settings_;
  return write_block(settings);
}

ConfigNode PositionOption::write_minimal() const {
  Settings settings = settings_, usual;
  usual.kind = settings.kind;
  const auto changed = headlab::write_minimal(settings, usual);
  if (changed.entries.empty()) return write_text(settings.kind);
  return merge_config(kind_alone(settings.kind, {}), changed);
}

void PositionOption::forms(Forms& f) const {
  f.word(position_words().one_of);
  for (const std::string& kind : position_words().one_of) {
    Settings settings;
    const bool usual = kind == settings.kind;
    settings.kind = kind;
    f.kind(kind, settings, usual);
  }
}

const PositionOption::Settings& PositionAt::of(int64_t layer,
                                               const PositionOption& position) const {
  const auto* range = find_range(ranges_, layer);
  return *(range ? range->position : position).operator->();
}

void PositionAt::check(const PositionOption& position, const Complain& complain) const {
  const auto of_embedding = [&](const std::string& kind) {
    return kind == "learned" || kind == "sinusoidal";
  };
  for (const auto& range : ranges_) {
    const std::string field = "position_at." + range.key;
    if (of_embedding(position->kind))
      complain(field, fmt::format("position: {} is added to the embedding, which all layers read; "
                                  "choose position: rope, alibi, relative or none",
                                  position->kind));
    else if (const auto& own = range.position->kind; own != "none" && own != "rope")
      complain(field, fmt::format("must be none or rope, is {}", own));
  }
}

void PositionAt::read(const ConfigNode& node, const std::string& path, Problems& problems) {
  if (node.kind != ConfigNode::Kind::kMapping)
    return problems.add(node.place, path, "must be a mapping of layers to positions");
  for (const auto& [key, written] : node.entries) {
    const auto here = fmt::format("{}.{}", path, key);
    Range range{{key}, PositionOption(), written};
    if (!range.LayerRange::read(written, here, problems)) continue;
    range.position.read(written, here, problems);
    ranges_.push_back(std::move(range));
  }
}

ConfigNode PositionAt::write() const {
  ConfigNode node;
  for (const auto& range : ranges_) node.set(range.key, range.position.write());
  return node;
}

ConfigNode PositionAt::write_minimal() const {
  ConfigNode node;
  for (const auto& range : ranges_) node.set(range.key, range.written);
  return node;
}

void PositionAt::forms(Forms& f) const {
  f.entries(kLayersPattern, [](Forms& position) { PositionOption().forms(position); });
}

}  // namespace headlab
