// safetensors files, and every byte of what they say they hold.
#include "experiments/files/safetensors.h"
#include "tests/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headlab;
  const auto path = fuzzing::write("a.safetensors", {reinterpret_cast<const char*>(data), size});
  fuzzing::parse(size, path.native(), [&] {
    const SafetensorsFile file(path);
    for (const auto& entry : file.entries()) {
      fuzzing::touch(entry.data, entry.bytes);
      fuzzing::require(file.find(entry.name) == &entry, "a tensor is not found by its name");
    }
  });
  return 0;
}
