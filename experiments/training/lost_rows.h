// What metrics.jsonl or log.h5 has lost by the time that a run goes on, made again from the other.
#pragma once

#include <string>
#include <vector>

#include "experiments/runs/run_metrics.h"
#include "experiments/training/training_log.h"
#include "experiments/training/training_metrics.h"

namespace headlab {

// Of a run that goes on after `step`, whose files have been cut to that step. `kept`: the rows of
// metrics.jsonl. Rows that only the log has go into metrics.jsonl, in the log's single precision;
// a log without any gets those of metrics.jsonl, without what heads did. -> what was lost, and what
// of it is there again, a line each.
std::vector<std::string> restore_rows(int64_t step, const std::vector<TrainingMetric>& table,
                                      std::vector<MetricsRow> kept, MetricsFile& metrics,
                                      TrainingLog& log);

}  // namespace headlab
