// Tokens as nanoGPT prepares them: meta.json, a line of %%, the bytes of train.bin.
#include "experiments/data/formats/token_files.h"
#include "tests/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headlab;
  const auto files = fuzzing::parts({reinterpret_cast<const char*>(data), size}, 2);
  fuzzing::parse(size, "a.", [&] {
    const auto meta = parse_token_meta(files[0], "a.json");
    const std::vector<char> aligned(files[1].begin(), files[1].end());
    const auto tokens = tokens_in({aligned.data(), aligned.size()}, meta, "a.bin");
    std::visit([](auto ids) { fuzzing::touch(ids.data(), ids.size_bytes()); }, tokens);
  });
  return 0;
}
