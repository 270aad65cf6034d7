// Byte-level BPE: vocab.json, then merges.txt, then tokenizer_config.json, with lines of %%
// between.
#include "experiments/data/tokenizers/tokenizer_files.h"
#include "tests/fuzz/tokenizer_fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headlab;
  const auto files = fuzzing::parts({reinterpret_cast<const char*>(data), size}, 3);
  fuzzing::write("vocab.json", files[0]);
  fuzzing::write("merges.txt", files[1]);
  fuzzing::write("tokenizer_config.json", files[2].empty() ? "{}" : files[2]);
  const auto& folder = fuzzing::folder();
  fuzzing::parse(size, folder.native(), [&] {
    const auto found = read_tokenizer_folder(folder);
    if (found.tokenizer) fuzzing::use(*found.tokenizer, folder.string());
  });
  return 0;
}
