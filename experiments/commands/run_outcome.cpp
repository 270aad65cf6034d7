#include "experiments/commands/run_outcome.h"

#include <fmt/format.h>

#include <optional>

#include "experiments/commands/report.h"

namespace headlab {
namespace {

// The task's metrics, the loss first, with what they were measured on; "" where nothing was
// evaluated.
std::string validation_text(const RunStatus& status) {
  const std::string val = "val/";
  auto metrics = status.metrics;
  const auto take = [&](const char* name) {
    const auto taken = metrics.extract(val + name);
    return taken.empty() ? std::optional<double>() : std::optional(taken.mapped());
  };
  const auto loss = take("loss"), tokens = take("tokens"), whole = take("whole_split"),
             step = take("step");
  take("examples");
  if (!loss) return "";
  auto text = fmt::format(", val loss {:.4f} nat", *loss);
  for (auto metric = metrics.lower_bound(val);
       metric != metrics.end() && metric->first.starts_with(val); ++metric)
    text += fmt::format(", {} {:.4f}", metric->first.substr(val.size()), metric->second);
  if (tokens) text += fmt::format(" over {:.0f} tokens", *tokens);
  if (whole) text += *whole != 0 ? ", the whole split" : ", the first of the split";
  if (step && static_cast<int64_t>(*step) != status.step)
    text += fmt::format(", at step {:.0f}", *step);
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
  text += validation_text(status);
  if (!code.empty()) text += "\ncode: " + code;
  return print({.object = object, .text = text + "\n"}, json);
}

}  // namespace headlab
