// Labels of what a head does, from its statistics, by published thresholds. Several may hold. No
// torch in here.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace headlab {

// A head has the role where its statistic is above the threshold, or at least reaches it.
struct RoleRule {
  std::string name, statistic;
  double threshold = 0;
  bool reaches = false;         // >= instead of >
  std::string long_name;        // with the source of the threshold
  std::string formula() const;  // "prev_token > 0.5"
};

// The rules with their published thresholds. `syntactic` reads a statistic that is no entry of the
// other tables: `best_gain`, the best accuracy of a relation in a direction above its baseline.
// `induction` and `duplicate` are meant for `induction` and `duplicate_token` on
// repeated random tokens.
const std::vector<RoleRule>& role_rules();

// The rules with other thresholds, each "role=number". ConfigError for what is no role or number.
std::vector<RoleRule> role_rules_with(const std::vector<std::string>& thresholds);

// 1 where a head has the role, by role; NaN is no. A role whose statistic is missing is absent.
// The vectors of `values` that are read are of one length, an entry a head.
std::map<std::string, std::vector<uint8_t>> head_roles(
    const std::map<std::string, std::vector<double>>& values,
    const std::vector<RoleRule>& rules = role_rules());

}  // namespace headlab
