// A setting that is a seed: an unsigned integer of 64 bits, of which the plain fields hold half.
#pragma once

#include <charconv>
#include <limits>
#include <string>

#include "core/config/config.h"

namespace headlab {

struct SeedOption : CustomField {
  uint64_t value = 0;

  void read(const ConfigNode& node, const std::string& path, Problems& problems) override {
    constexpr uint64_t kLargestSigned = std::numeric_limits<int64_t>::max();
    const char* end = node.text.data() + node.text.size();
    uint64_t large = 0;
    int64_t small = 0;
    const auto [stop, error] = std::from_chars(node.text.data(), end, large);
    const bool plain = node.kind == ConfigNode::Kind::kScalar && !node.quoted;
    if (plain && stop == end && error == std::errc{} && large > kLargestSigned)
      value = large;
    else if (read_value(small, node, path, problems,
                        node.text.starts_with('-') ? at_least(0) : between(0, 0x1p63)))
      value = static_cast<uint64_t>(small);
  }
  ConfigNode write() const override { return ConfigNode::scalar(std::to_string(value)); }
  std::string type() const override { return "integer of 64 bits, unsigned"; }
  void forms(Forms& f) const override { f.integer(from_below(0, 0x1p64)); }
};

}  // namespace headlab
