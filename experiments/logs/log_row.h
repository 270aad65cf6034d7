// A row on its way to the log: values by name become the bytes of a record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "experiments/logs/log_schema.h"

namespace headlab {

// How the bytes of one group's row are laid out. std::invalid_argument: an unknown name, a wrong
// number of values.
class LogRowShape {
 public:
  explicit LogRowShape(const LogGroup& group);

  const std::vector<std::byte>& missing() const { return missing_; }  // a row without any value

  // Values of a variable that the layout named; those that `keep` (by index) denies stay missing.
  void put(std::vector<std::byte>& row, const std::string& name, std::span<const double> values,
           const std::function<bool(size_t)>& keep = {}) const;

  // The elements of any variable as they are in the file.
  template <class T>
  void put_stored(std::vector<std::byte>& row, const std::string& name,
                  std::span<const T> values) const {
    const Place& place = places_.at(name);
    require_count(name, values.size(), place.count);
    std::memcpy(row.data() + place.begin, values.data(), values.size_bytes());
  }

  void require_count(const std::string& name, size_t given, size_t wanted) const;

 private:
  struct Place {
    size_t begin = 0, count = 0;
    bool named = false;   // by the layout
    bool counts = false;  // i8; others that are named are f4
  };
  std::string path_;
  std::map<std::string, Place> places_;
  std::vector<std::byte> missing_;
};

// [probe, layer, head, query, key] to two bytes a weight; NaN is "none". RunError naming the first
// weight that leaves [0, 1] by more than rounding (1e-6).
std::vector<uint16_t> pack_weights(const std::string& site, int64_t step, const LogMaps& maps,
                                   std::span<const float> weights);

}  // namespace headlab
