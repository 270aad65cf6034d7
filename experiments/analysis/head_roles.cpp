#include "experiments/analysis/head_roles.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/config/config.h"

namespace headlab {

std::string RoleRule::formula() const {
  return fmt::format("{} {} {:.4g}", statistic, reaches ? ">=" : ">", threshold);
}

const std::vector<RoleRule>& role_rules() {
  constexpr bool kReaches = true, kExceeds = false;
  static const std::vector<RoleRule> rules{
      {"positional", "positional_share", 0.9, kReaches,
       "attends to one offset; Voita et al. 2019, section 5.1"},
      {"previous", "prev_token", 0.5, kExceeds,
       "attends to the previous token; Clark et al. 2019, clustering"},
      {"next", "next_token", 0.5, kExceeds,
       "attends to the next token; Clark et al. 2019, clustering"},
      {"broad", "entropy_normalized", 3.8 / std::log(128.0), kExceeds,
       "attends broadly; Clark et al. 2019: 3.8 nat at up to 128 tokens, rescaled"},
      {"cls", "cls_mass", 0.6, kExceeds, "attends to classifier tokens; Clark et al. 2019"},
      {"sep", "sep_mass", 0.6, kExceeds, "attends to separators; Clark et al. 2019"},
      {"punctuation", "punctuation_mass", 0.6, kExceeds,
       "attends to full stops and commas; Clark et al. 2019"},
      {"sink", "first_token", 0.3, kExceeds,
       "sinks into the first token; epsilon of Gu et al. 2024"},
      {"syntactic", "best_gain", 0.1, kReaches,
       "follows a dependency relation, over its baseline; Voita et al. 2019, section 5.2"},
      {"rare", "rare_token", 0.5, kExceeds,
       "attends to the rarest tokens; weakest case of Voita et al. 2019, section 5.3"},
      {"induction", "induction", 0.4, kExceeds,
       "attends behind earlier copies of the token; no published cut"},
      {"duplicate", "duplicate_token", 0.4, kExceeds,
       "attends to earlier copies of the token; no published cut"}};
  return rules;
}

std::vector<RoleRule> role_rules_with(const std::vector<std::string>& thresholds) {
  auto rules = role_rules();
  for (const auto& setting : thresholds) {
    const size_t equals = setting.find('=');
    const auto refuse = [&](const std::string& what) {
      throw ConfigError(fmt::format("threshold '{}': {}", setting, what));
    };
    if (equals == std::string::npos) refuse("must be role=number, as in sink=0.5");
    const auto name = setting.substr(0, equals);
    const auto rule = std::ranges::find(rules, name, &RoleRule::name);
    if (rule == rules.end()) {
      std::vector<std::string> names;
      for (const auto& r : rules) names.push_back(r.name);
      refuse(fmt::format("there is no role '{}'{}", name, did_you_mean(name, names)));
    }
    const char *first = setting.data() + equals + 1, *last = setting.data() + setting.size();
    const auto [end, error] = std::from_chars(first, last, rule->threshold);
    if (error != std::errc() || end != last || !std::isfinite(rule->threshold))
      refuse("must end in a number");
  }
  return rules;
}

std::map<std::string, std::vector<uint8_t>> head_roles(
    const std::map<std::string, std::vector<double>>& values, const std::vector<RoleRule>& rules) {
  std::map<std::string, std::vector<uint8_t>> roles;
  for (const auto& rule : rules) {
    const auto found = values.find(rule.statistic);
    if (found == values.end()) continue;
    auto& has = roles[rule.name];
    for (double value : found->second)
      has.push_back(rule.reaches ? value >= rule.threshold : value > rule.threshold);
  }
  return roles;
}

}  // namespace headlab
