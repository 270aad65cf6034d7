// A setting that is a number, or says more as a block: mohsa's overlap.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/config_fields.h"

namespace headlab {

// An integer of 0 or more, or a mapping.
template <class B>
struct IntegerOrBlock : CustomField {
  std::optional<int64_t> number;  // none: `block` says it
  B block;

  explicit IntegerOrBlock(int64_t value) : number(value) {}

  void read(const ConfigNode& node, const std::string& path, Problems& problems) override {
    if (node.kind == ConfigNode::Kind::kMapping) {
      number.reset();
      read_block(block, node, path, problems);
    } else if (node.kind == ConfigNode::Kind::kScalar) {
      read_value(number.emplace(), node, path, problems, limits());
    } else {
      std::vector<std::string> names;
      for (const BlockField& field : fields_of(block)) names.push_back(field.name);
      problems.add(node.place, path,
                   "must be an integer, or a mapping with " + enumerated(names, "and"));
    }
  }
  ConfigNode write() const override {
    auto written = block;
    return number ? write_integer(*number) : write_block(written);
  }
  std::string type() const override { return "integer or mapping"; }
  void forms(Forms& f) const override {
    auto described = block;
    f.integer(limits());
    f.mapping(described);
  }

 private:
  static Limits limits() { return at_least(0); }
};

}  // namespace headlab
