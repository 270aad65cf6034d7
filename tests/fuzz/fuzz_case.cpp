// What the metadata of a file of expected numbers says: the same bytes as each of its entries, and
// as the config of a layer.
#include "core/config/config.h"
#include "experiments/cases/case_settings.h"
#include "tests/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headlab;
  const std::string name = "a.safetensors", said(reinterpret_cast<const char*>(data), size);
  std::map<std::string, std::string> metadata;
  for (const char* key : {"beam", "causal", "config", "offsets", "relations", "rtol", "topk"})
    metadata[key] = said;
  const CaseSettings settings(name, metadata);
  const auto read = [&](const std::function<void()>& work) { fuzzing::parse(size, name, work); };
  read([&] { parse_config(said, name + " (config)"); });
  read([&] { settings.number("rtol"); });
  read([&] { settings.truth("causal"); });
  read([&] {
    const auto topk = settings.topk();
    fuzzing::require(topk.temperature > 0 && topk.top_k > 0, "a distribution of no tokens");
  });
  read([&] { fuzzing::require(settings.beam_length(20) > 0, "a translation of no length"); });
  read([&] { settings.offsets(); });
  read([&] { fuzzing::require(settings.relations() > 0, "no relations"); });
  read([&] { settings.conversion().at("from").dump(); });
  return 0;
}
