// Kinds of one family, by name: what heads, models and data sources register themselves in.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/config/config.h"

namespace headlab {

// Kind has a `name` and `options`, a function that makes fresh ones.
template <class Kind>
class Registry : public KindRegistry {
 public:
  explicit Registry(std::string what) : what_(std::move(what)) {}  // e.g. "kind of heads"

  void add(Kind kind) {
    std::string name = kind.name;
    kinds_[std::move(name)] = std::move(kind);
  }
  // ConfigError with the nearest name where there is none.
  const Kind& at(const std::string& name) const {
    const auto found = kinds_.find(name);
    if (found == kinds_.end())
      throw ConfigError("no " + what_ + " is called '" + name + "'" + did_you_mean(name, names()));
    return found->second;
  }

  std::vector<std::string> names() const override {  // sorted
    std::vector<std::string> all;
    for (const auto& [name, kind] : kinds_) all.push_back(name);
    return all;
  }
  std::shared_ptr<Block> options(const std::string& kind) const override {
    return at(kind).options();
  }

 private:
  std::string what_;
  std::map<std::string, Kind> kinds_;
};

}  // namespace headlab
