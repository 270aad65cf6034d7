// Kinds of one family, by name: what heads, models and data sources register themselves in.
#pragma once

#include <map>
#include <memory>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "core/config/config.h"

namespace headlab {

// What was registered twice, a line each. Objects register themselves before main(), where an
// exception would end the program without a word: so whoever has a main() looks here first.
inline std::vector<std::string>& registration_conflicts() {
  static std::vector<std::string> conflicts;
  return conflicts;
}

// Kind has a `name` and `options`, a function that makes fresh ones.
template <class Kind>
class Registry : public KindRegistry {
 public:
  explicit Registry(std::string what) : what_(std::move(what)) {}  // e.g. "kind of heads"

  // The first of a name stays; a second is remembered in registration_conflicts().
  void add(Kind kind, const std::source_location& where = std::source_location::current()) {
    const std::string name = kind.name;
    if (const auto [first, fresh] = places_.try_emplace(name, where.file_name()); !fresh) {
      registration_conflicts().push_back(what_ + " '" + name + "' is registered by two files, " +
                                         first->second + " and " + where.file_name() +
                                         ": give one another name");
      return;
    }
    kinds_[name] = std::move(kind);
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
  std::map<std::string, std::string> places_;  // the file that registered each
};

}  // namespace headlab
