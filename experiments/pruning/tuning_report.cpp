#include "experiments/pruning/tuning_report.h"

#include <fmt/format.h>

#include "core/torch.h"
#include "experiments/system/program_name.h"
#include "experiments/system/shell_word.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

// Commands that do what is left of pruning to `count` heads; each goes on with what the one before
// leaves. No gates are left to rank by.
std::vector<std::string> commands_left(const std::string& run, int64_t gone, const PruneSettings& s,
                                       const Tuning& tuning) {
  std::vector<std::string> commands;
  std::string from = run;
  const auto add = [&](int64_t count, int64_t rounds, int64_t updates, const std::string& ranking) {
    const auto out = fmt::format("{}-{}", run, commands.size() + 2);
    commands.push_back(fmt::format("{} prune {} --count {}{} --rounds {} --tune {} --out {}",
                                   program_name(), shell_word(from), count, ranking, rounds,
                                   updates, shell_word(out)));
    from = out;
  };
  const int64_t rounds = s.rounds - tuning.round();
  if (tuning.updates_left() > 0) add(gone, 1, tuning.updates_left(), "");
  if (rounds > 0 && s.by != "gates") add(s.count, rounds, s.tune, " " + ranking_options(s));
  return commands;
}

}  // namespace

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
  if (status.state == RunState::kStopped)
    report["go_on"] = commands_left(run_path, built_heads(*run.model) - kept, s, tuning);
  return report;
}

std::string ended_text(const Json& r) {
  auto text = fmt::format("{}\n{} at step {}: {}; in round {} of {}, {} updates left in it\n",
                          r["out"].get<std::string>(), r["status"].get<std::string>(),
                          r["step"].get<int64_t>(), r["reason"].get<std::string>(),
                          r["round"].get<int64_t>(), r["rounds"].get<int64_t>(),
                          r["updates_left"].get<int64_t>());
  if (!r.contains("go_on")) return text;
  text += "to go on, with the other options as before:\n";
  for (const auto& command : r["go_on"]) text += fmt::format("  {}\n", command.get<std::string>());
  return text;
}

}  // namespace headlab
