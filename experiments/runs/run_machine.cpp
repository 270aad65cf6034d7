#include "experiments/runs/run_machine.h"

#include <fmt/format.h>

#include <algorithm>

namespace headlab {
namespace {

using MachineJson = nlohmann::ordered_json;

// Of one session; "" where it is not known.
std::string device_type(const MachineJson& session) {
  if (!session.is_object()) return "";
  if (const auto device = session.value("device", MachineJson()); device.is_string())
    return device.get<std::string>();
  const auto gpus = session.value("gpus", MachineJson());
  if (!gpus.is_array()) return "";
  return gpus.empty() ? "cpu" : "cuda";
}

std::string precision_of(const MachineJson& session, const TrainOptions& options) {
  const auto precision = session.value("precision", MachineJson());
  return precision.is_string() ? precision.get<std::string>()
                               : resolved_precision(options, device_type(session));
}

std::string shown(const MachineJson& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array() || value.empty()) return value.is_array() ? "none" : value.dump();
  std::vector<std::string> all;
  for (const auto& item : value) all.push_back(shown(item));
  return fmt::format("{}", fmt::join(all, ", "));
}

}  // namespace

std::string resolved_precision(const TrainOptions& options, const std::string& device) {
  // bf16 is slower than fp32 on a CPU without units for it, so it is never assumed there.
  const bool half = options.precision == "bf16" || (options.precision == "auto" && device != "cpu");
  return half ? "bf16" : "fp32";
}

std::string devices_of(const MachineJson& manifest, const TrainOptions& options) {
  std::vector<std::string> all;
  const auto add = [&](const MachineJson& session) {
    const auto device = device_type(session);
    if (device.empty()) return;
    auto text = fmt::format("{} in {}", device, precision_of(session, options));
    if (std::find(all.begin(), all.end(), text) == all.end()) all.push_back(std::move(text));
  };
  if (manifest.is_object() && manifest.contains("previous"))
    for (const auto& session : manifest["previous"]) add(session);
  add(manifest);
  return fmt::format("{}", fmt::join(all, " + "));
}

std::vector<std::string> device_that_differs(const MachineJson& then, const MachineJson& now,
                                             const TrainOptions& options) {
  const auto before = device_type(then), is = device_type(now);
  if (before.empty() || is.empty()) return {};
  std::vector<std::string> lines;
  if (before != is) lines.push_back(fmt::format("device was {}, is {}", before, is));
  const auto precision_then = precision_of(then, options), precision = precision_of(now, options);
  if (precision_then != precision)
    lines.push_back(fmt::format("precision was {}, is {}", precision_then, precision));
  return lines;
}

std::string device_remedy(const MachineJson& then, const MachineJson& now) {
  const auto device = device_type(then);
  if (device != device_type(now)) return fmt::format("'--device {}' goes on with it", device);
  return "init=RUN trains another run from its weights";
}

std::string machine_since(const MachineJson& then, const MachineJson& now) {
  if (!then.is_object()) return "";
  std::vector<std::string> changes;
  const auto add = [&](const char* what, const MachineJson& before, const MachineJson& is) {
    if (!before.is_null() && !is.is_null() && before != is)
      changes.push_back(fmt::format("{} was {}, is {}", what, shown(before), shown(is)));
  };
  const auto of = [](const MachineJson& json, const char* key) {
    return json.is_object() ? json.value(key, MachineJson()) : MachineJson();
  };
  add("the CPU", of(then, "cpu"), of(now, "cpu"));
  add("the instruction set of torch's kernels", of(then, "cpu_capability"),
      of(now, "cpu_capability"));
  add("the instruction set of headlab's kernels", of(then, "isa"), of(now, "isa"));
  add("the GPU", of(then, "gpus"), of(now, "gpus"));
  const auto versions = of(then, "versions"), versions_now = of(now, "versions");
  for (const char* library : {"torch", "cuda", "compiler"})
    add(library, of(versions, library), of(versions_now, library));
  if (changes.empty()) return "";
  return fmt::format("{}: its last bits are not those of one machine throughout",
                     fmt::join(changes, "; "));
}

}  // namespace headlab
