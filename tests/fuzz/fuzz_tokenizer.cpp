// The tokenizer in data.json of a run, of any kind.
#include "core/errors.h"
#include "experiments/files/json_text.h"
#include "tests/fuzz/tokenizer_fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headlab;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzzing::parse(size, "", [&] {
    if (const auto json = parse_json<nlohmann::ordered_json>(text))
      fuzzing::use(*read_tokenizer(*json), "a");
  });
  return 0;
}
