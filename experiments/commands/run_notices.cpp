#include "experiments/commands/run_notices.h"

#include "experiments/models/model.h"
#include "experiments/runs/same_run.h"
#include "experiments/system/output.h"
#include "experiments/training/update.h"

namespace headlab {

void say_unreached_rate(const Experiment& experiment, const DataSource& data) {
  const auto& train = experiment.train;
  const int64_t epoch = train.epoch_size(data);
  const auto schedule = schedule_of(train, experiment.model.as<ModelOptions>().d_model, epoch);
  if (const auto what = unreached_rate(schedule, train.total_steps(epoch)); !what.empty())
    tell("{}", what);
}

void say_same_on_other_data(const std::filesystem::path& path, const Experiment& experiment,
                            const nlohmann::ordered_json& data) {
  if (const auto other = same_on_other_data(path, experiment, data); !other.empty())
    tell("{}", other);
}

}  // namespace headlab
