// What `headlab bench` prints of its measurements.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "experiments/benchmarks/bench_run.h"

namespace headlab {

// {"machine", "attention", "precision", "rounds", "seconds", "peak": {"flops", "bytes", "before",
// "after"}, "shapes": [{"shape", "batch", "tokens", "width", "heads", "waited", "rows": [{"source",
// "kind", "label", "written", "path", "forward", "both", "statistics", "decode"}]}]}. Of each pass
// {"ms", "beside_ms": {"least", "median", "most", "rounds"}, "ratio": likewise, "flops",
// "share_of_peak", "peak_bytes", "moved_bytes"}, or {"reason"} where there is none; what is not
// counted is null.
nlohmann::ordered_json bench_json(const BenchWork& work, const BenchResults& results);

// Tables of each shape with what explains them, for a terminal or as Markdown.
std::string bench_text(const BenchWork& work, const BenchResults& results);
std::string bench_markdown(const BenchWork& work, const BenchResults& results);

}  // namespace headlab
