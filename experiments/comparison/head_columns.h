// What the heads of a training did in the end, as its log has it. No torch in here.
#pragma once

#include <filesystem>
#include <optional>

namespace headlab {

// At the last logged step, over the heads of all sites that are there; none where the log has no
// such statistic.
struct HeadColumns {
  std::optional<double> entropy;      // mean, nat
  std::optional<double> max_logit;    // the largest
  std::optional<double> first_token;  // mean share of the weights on the first token
};

// RunError where the log cannot be read.
HeadColumns head_columns(const std::filesystem::path& run);

}  // namespace headlab
