#include "experiments/pruning/tuning_report.h"

#include <fmt/format.h>

#include "core/torch.h"

namespace headlab {

using Json = nlohmann::ordered_json;

Json ended_json(const std::filesystem::path& out, const OpenedRun& run, const PruneSettings& s,
                const Tuning& tuning) {
  const auto& status = tuning.ended()->status;
  const auto run_path = std::filesystem::canonical(out).string();
  const int64_t kept = std::ssize(heads_where(alive_heads(*run.model)));
  Json report{{"out", run_path},
              {"status", run_state_name(status.state)},
              {"reason", status.reason},
              {"step", status.step},
              {"round", tuning.round()},
              {"rounds", s.rounds},
              {"updates_left", tuning.updates_left()},
              {"kept", kept}};
  for (const auto& [name, value] : status.metrics) report[name] = metric_json(value);
  return report;
}

std::string ended_text(const Json& r) {
  return fmt::format("{}\n{} at step {}: {}; in round {} of {}, {} updates left in it\n",
                     r["out"].get<std::string>(), r["status"].get<std::string>(),
                     r["step"].get<int64_t>(), r["reason"].get<std::string>(),
                     r["round"].get<int64_t>(), r["rounds"].get<int64_t>(),
                     r["updates_left"].get<int64_t>());
}

}  // namespace headlab
