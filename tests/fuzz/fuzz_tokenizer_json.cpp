// tokenizer.json of a published model.
#include "experiments/data/tokenizers/tokenizer_files.h"
#include "tests/fuzz/tokenizer_fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headlab;
  fuzzing::write("tokenizer.json", {reinterpret_cast<const char*>(data), size});
  const auto& folder = fuzzing::folder();
  fuzzing::parse(size, folder.native(), [&] {
    const auto found = read_tokenizer_folder(folder);
    if (found.tokenizer) fuzzing::use(*found.tokenizer, folder.string());
  });
  return 0;
}
