// The data of a run, opened by what reads them.
#pragma once

#include "experiments/data/data_description.h"
#include "experiments/runs/experiment.h"

namespace headlab {

// The data of an experiment that is to be trained. ConfigError where train.epochs is asked of data
// that have none.
std::shared_ptr<DataSource> open_training_data(const Experiment& experiment);

// The data that a run's config names. DataError where they cannot be read, or are no longer those
// that its model knows.
std::shared_ptr<DataSource> open_own_data(const Experiment& experiment,
                                          const DataDescription& description);

// Other data for its model: of a run on text a file, encoded as that was and not split; of any
// other what its kind reads from `path`. ConfigError where the kind reads no file, DataError where
// the file does not fit the model.
std::shared_ptr<DataSource> open_other_data(const Experiment& experiment,
                                            const DataDescription& description,
                                            const std::filesystem::path& path);
// A text for its model; `name` is what messages call it. ConfigError where no text is behind the
// run's data.
std::shared_ptr<DataSource> open_text(const Experiment& experiment,
                                      const DataDescription& description, const std::string& text,
                                      const std::string& name,
                                      std::vector<std::filesystem::path> files = {});

}  // namespace headlab
