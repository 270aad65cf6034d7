// Settings that can be written in one of two ways.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/config/config.h"

namespace headlab {

// One of a few words, of which the first is the default, or a number.
class WordOrNumber : public CustomField {
 public:
  explicit WordOrNumber(std::vector<std::string> words)
      : words_(std::move(words)), word_(words_.front()) {}
  explicit WordOrNumber(double number) : number_(number) {}

  const std::optional<double>& number() const { return number_; }  // none: a word
  const std::string& word() const { return word_; }

  void read(const ConfigNode& node, const std::string& path, Problems& problems) override;
  ConfigNode write() const override { return number_ ? write_number(*number_) : write_text(word_); }
  std::string type() const override;
  void forms(Forms& f) const override;

 private:
  std::vector<std::string> words_;
  std::string word_;
  std::optional<double> number_;
};

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
      problems.add(node.place, path, "must be an integer, or a mapping with " + field_names(block));
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
std::string field_names(Block& block);  // "a, b and c"

}  // namespace headlab
