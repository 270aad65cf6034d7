#include "experiments/commands/run_outcome.h"

#include <fmt/format.h>

#include "experiments/commands/report.h"

namespace headlab {
namespace {

// The task's metrics, the loss first; "" where nothing was evaluated.
std::string validation_text(const Metrics& metrics) {
  const std::string val = "val/";
  const auto loss = metrics.find(val + "loss"), tokens = metrics.find(val + "tokens");
  if (loss == metrics.end()) return "";
  auto text = fmt::format(", val loss {:.4f} nat", loss->second);
  for (auto metric = metrics.lower_bound(val);
       metric != metrics.end() && metric->first.starts_with(val); ++metric)
    if (metric != loss && metric != tokens)
      text += fmt::format(", {} {:.4f}", metric->first.substr(val.size()), metric->second);
  if (tokens != metrics.end()) text += fmt::format(" over {:.0f} tokens", tokens->second);
  return text;
}

}  // namespace

int print_outcome(const std::filesystem::path& path, const RunStatus& status, bool json,
                  const std::string& code) {
  nlohmann::ordered_json object{{"run", path.string()},
                                {"status", run_state_name(status.state)},
                                {"reason", status.reason},
                                {"step", status.step}};
  for (const auto& [name, value] : status.metrics) object[name] = metric_json(value);
  if (!code.empty()) object["code"] = code;
  auto text = fmt::format("{}\n{} at step {}{}", path.string(), run_state_name(status.state),
                          status.step, status.reason.empty() ? "" : ": " + status.reason);
  text += validation_text(status.metrics);
  if (!code.empty()) text += "\ncode: " + code;
  return print({.object = object, .text = text + "\n"}, json);
}

}  // namespace headlab
