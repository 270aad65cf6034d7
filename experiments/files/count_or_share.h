// A setting that is a count of something, or a share of all of it.
#pragma once

#include <string>

#include "core/config/config.h"

namespace headlab {

Limits share_limits();  // above 0, below 1

// An integer of 0 or more, or a share above 0 and below 1 of something.
class CountOrShare : public CustomField {
 public:
  CountOrShare(int64_t count)  // NOLINT(google-explicit-constructor)
      : number_(static_cast<double>(count)) {}

  bool is_share() const { return number_ > 0 && number_ < 1; }
  int64_t of(int64_t all) const;  // a share of all, rounded; a count as it is

  void read(const ConfigNode& node, const std::string& path, Problems& problems) override;
  ConfigNode write() const override;
  std::string type() const override { return "integer or share"; }
  void forms(Forms& f) const override;

 private:
  double number_;
};

}  // namespace headlab
