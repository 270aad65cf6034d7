// How tokens know their place: of a whole stack, and of some of its layers.
#pragma once

#include "core/config/config.h"

namespace headlab {

// Layers by their numbers, "3" or "2-5".
struct LayerRange {
  std::string key;
  int64_t first = 0, last = 0;

  // Reads `key`; false, with a problem at `written`, where it is none.
  bool read(const ConfigNode& written, const std::string& path, Problems& problems);
};
inline constexpr const char* kLayersPattern = "^[0-9]+(-[0-9]+)?$";

// The range that has the layer, or null.
template <class Range>
const Range* find_range(const std::vector<Range>& ranges, int64_t layer) {
  for (const auto& range : ranges)
    if (range.first <= layer && layer <= range.last) return &range;
  return nullptr;
}
// Complains of a range that ends behind the layers, or lies over another.
void check_end(const std::string& field, const LayerRange& range, int64_t layers,
               const Complain& complain);
void check_apart(const std::string& field, const LayerRange& range, const LayerRange& before,
                 const Complain& complain);
template <class Range>
void check_ranges(const std::string& field, const std::vector<Range>& ranges, int64_t layers,
                  const Complain& complain) {
  for (size_t i = 0; i < ranges.size(); ++i) {
    check_end(field, ranges[i], layers, complain);
    for (size_t j = 0; j < i; ++j) check_apart(field, ranges[i], ranges[j], complain);
  }
}

// `position: rope`, or `position: {kind: rope, base: 500000.0}`.
class PositionOption : public CustomField {
 public:
  struct Settings : Block {
    std::string kind = "learned", layout = "half";
    double base = 10000, fraction = 1;
    int64_t buckets = 32, max_distance = 128;
    void visit(Fields& f) override;  // kind, and what that kind knows
    void check(const Complain& complain) const override;
  };
  PositionOption() = default;
  explicit PositionOption(std::string kind) { settings_.kind = std::move(kind); }
  const Settings* operator->() const { return &settings_; }

  void read(const ConfigNode& node, const std::string& path, Problems& problems) override;
  ConfigNode write() const override;
  ConfigNode write_minimal() const override;
  std::string type() const override { return "word or mapping"; }
  void forms(Forms& f) const override;

 private:
  Settings settings_;
};

// `position_at: {"0-2": none}`: other positions in some layers, none or rope.
class PositionAt : public CustomField {
 public:
  struct Range : LayerRange {
    PositionOption position;
    ConfigNode written;
  };
  const std::vector<Range>& ranges() const { return ranges_; }
  // `position` rules where no range does.
  const PositionOption::Settings& of(int64_t layer, const PositionOption& position) const;
  // Positions of the embedding are every layer's.
  void check(const PositionOption& position, const Complain& complain) const;

  void read(const ConfigNode& node, const std::string& path, Problems& problems) override;
  ConfigNode write() const override;
  ConfigNode write_minimal() const override;
  std::string type() const override { return "mapping of layers to positions"; }
  void forms(Forms& f) const override;

 private:
  std::vector<Range> ranges_;
};

}  // namespace headlab
