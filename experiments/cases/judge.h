// Computed tensors against expected ones, as `headlab layer` and `headlab check` judge them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "experiments/models/named_tensors.h"

namespace headlab {

struct Tolerance {
  double rtol = 0, atol = 0;
};

// What one expected tensor was found to be.
struct Verdict {
  std::string name;
  std::vector<int64_t> shape;  // the expected shape
  double error = 0;            // max |got - want|; infinite where they cannot be compared
  double bound = 0;            // atol + rtol * max |want|
  bool pass = false;
  std::string reason;  // why they cannot be compared; empty when they can
};

// Passes when error <= bound; uint8, which say what was chosen, when equal. NaN equals NaN, an
// infinity equals itself and is no part of max |want|. An undefined `got` (missing) or another
// shape fails.
Verdict judge(const std::string& name, const at::Tensor& got, const at::Tensor& want,
              Tolerance tolerance);

// One verdict for each name of `want`; what only `got` holds is not judged.
std::vector<Verdict> judge(const NamedTensors& got, const NamedTensors& want, Tolerance tolerance);

// Takes what a file expects, out.* and grad.*, from its tensors.
NamedTensors take_expected(NamedTensors& tensors);

bool all_pass(const std::vector<Verdict>& verdicts);

// `out.y  [2,5,32]  error 1.19e-07  bound 3.2e-06  pass`, for the terminal.
std::string verdict_line(const Verdict& verdict);

// Those of all verdicts.
std::string verdicts_text(const std::vector<Verdict>& verdicts);

// {"case", "pass", "tensors": [{"name", "error", "bound", "pass"}]}, to which the caller may add
// timings. An infinite error is null: JSON has no infinity.
nlohmann::ordered_json verdicts_json(const std::string& case_name,
                                     const std::vector<Verdict>& verdicts);

}  // namespace headlab
