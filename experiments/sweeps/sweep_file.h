// A sweep file: which points its grid has. No torch in here, and no file is opened.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/config/config.h"

namespace headlab {

inline constexpr size_t kMaxSweepPoints = 100'000;

// Settings that change together, and what they are in each place of the axis.
struct SweepAxis {
  std::vector<std::string> keys;                // as overrides name them
  std::vector<std::vector<ConfigNode>> places;  // a value for each key
};

struct SweepFile {
  std::vector<ConfigNode> bases;  // configs, as they are written
  std::vector<SweepAxis> axes;    // of the grid, in order of writing, and that of zip
  // Points that match all of an entry are left out; the key `base` names a base.
  std::vector<std::vector<std::pair<std::string, ConfigNode>>> exclude;
  std::vector<Place> exclude_places;

  std::vector<std::string> keys() const;  // of all axes
};

struct SweepPoint {
  ConfigNode base;
  std::vector<std::pair<std::string, ConfigNode>> settings;  // in the order of the axes
};

// ConfigError with everything that is wrong, each with its place.
SweepFile read_sweep(const ConfigNode& file);
// JSON schema of a sweep over these settings, for editors.
std::string sweep_schema(Block& settings);

// Every combination but the excluded ones: the first axis changes slowest, and bases slower still.
// ConfigError where none is left, where an entry of `exclude` matches none, and over
// kMaxSweepPoints.
std::vector<SweepPoint> points_of(const SweepFile& sweep);

}  // namespace headlab
