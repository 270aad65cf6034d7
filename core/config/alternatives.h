// A setting that can be written in one of two ways.
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

}  // namespace headlab
