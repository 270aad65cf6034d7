// Learning rates over the updates of a training.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headlab {

std::vector<std::string> schedule_names();

struct Schedule {
  std::string kind = "cosine";
  double lr = 1e-3;     // the peak; noam: (d_model * warmup)^-0.5 instead
  double min_lr = 0;    // cosine ends here
  double init_lr = 0;   // inverse_sqrt starts here
  int64_t warmup = 0;   // updates; inverse_sqrt and noam need at least 1
  int64_t decay = 1;    // cosine and linear end here
  int64_t d_model = 1;  // noam

  // Rate of update `step`, counted from 0.
  double at(int64_t step) const;
};

}  // namespace headlab
