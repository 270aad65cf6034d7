// state.json of a checkpoint, with a seal that fits whatever lies before it: a stranger can make
// one.
#include "experiments/files/sha256.h"
#include "experiments/runs/checkpoint_state.h"
#include "tests/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headlab;
  std::string text(reinterpret_cast<const char*>(data), size);
  fuzzing::write(kStateFile, text);
  const auto& folder = fuzzing::folder();
  fuzzing::parse(size, folder.native(), [&] { read_state(folder); });
  text += ",\n  \"sha256\": \"";
  fuzzing::write(kStateFile, text + sha256(text) + "\"\n}\n");
  fuzzing::parse(size, folder.native(), [&] { read_state(folder).value("best", false); });
  return 0;
}
