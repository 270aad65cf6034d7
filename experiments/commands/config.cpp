// `headlab config CONFIG`: the resolved config, what differs from the defaults, or the JSON schema
// of configs, sweeps or comparisons.
#include "experiments/commands/command.h"
#include "experiments/comparison/comparison_file.h"
#include "experiments/files/config_schema.h"
#include "experiments/runs/experiment.h"
#include "experiments/sweeps/sweep_file.h"
#include "experiments/system/output.h"
#include "experiments/system/own_files.h"

namespace headlab {
namespace {

struct ConfigOptions {
  std::string file;
  std::vector<std::string> overrides;
  std::string of = "config";
  bool minimal = false, schema = false;

  void visit(Arguments& a) {
    a.option("config", file, "YAML file, or the name of one of headlab's own, char_mha");
    a.option("overrides", overrides, "a.b=value ...");
    a.flag("--minimal", minimal, "only what differs from the defaults");
    a.flag("--schema", schema, "JSON schema, for editors");
    a.choice("--of", of, "the files that --schema is of", {"config", "sweep", "comparison"});
  }
};

int run_config(const ConfigOptions& o) {
  Experiment experiment, defaults;
  if (o.schema) {
    print_data((o.of == "sweep"        ? sweep_schema(experiment)
                : o.of == "comparison" ? comparison_schema(experiment)
                                       : schema_of(experiment)) +
               '\n');
    return kDone;
  }
  if (o.of != "config") throw ConfigError("--of: goes with --schema");
  if (o.file.empty()) throw ConfigError("config: name a config file, or use --schema");
  read_config(experiment, load_experiment(named_config(o.file), o.overrides));
  print_data(to_yaml(o.minimal ? write_minimal(experiment, defaults, Paths::kAbsolute)
                               : write_block(experiment)));
  return kDone;
}

const RegisterCommand config_command(
    {.name = "config",
     .summary = "print a config as it resolves, or the schema of configs",
     .example = "headlab config configs/char_mha.yaml model.layers=2 --minimal",
     .group = Group::kTrain},
    run_config);

}  // namespace
}  // namespace headlab
