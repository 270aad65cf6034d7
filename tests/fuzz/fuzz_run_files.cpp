// What lies in a run beside its weights, as a stranger may have left it: status.json,
// manifest.json, metrics.jsonl. The same bytes as each of them.
#include "experiments/runs/run_files.h"
#include "experiments/runs/run_manifest.h"
#include "tests/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headlab;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const char* name : {"status.json", "manifest.json", "metrics.jsonl"})
    fuzzing::write(name, text);
  const auto& run = fuzzing::folder();
  fuzzing::parse(size, run.native(), [&] { read_status(run); });
  fuzzing::parse(size, run.native(), [&] {
    const auto manifest = read_manifest(run);
    continue_manifest(run, manifest, {{"data", nlohmann::ordered_json::array()}});
  });
  fuzzing::parse(size, run.native(), [&] { read_metrics(run / "metrics.jsonl"); });
  return 0;
}
