// GGUF files: settings, the numbers of tensors, and the tokenizer that the settings describe.
#include <algorithm>

#include "experiments/data/tokenizers/tokenizer_files.h"
#include "experiments/files/gguf.h"
#include "tests/fuzz/fuzzing.h"

namespace headlab {
namespace {

void read_numbers(const GgufTensor& tensor) {
  fuzzing::touch(tensor.data, tensor.bytes);
  std::vector<float> numbers(std::min<int64_t>(tensor.numbers, 4 * kGgufBlock));
  GgufFile::numbers(tensor, 0, std::ssize(numbers), numbers.data());
}

}  // namespace
}  // namespace headlab

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headlab;
  const auto path = fuzzing::write("a.gguf", {reinterpret_cast<const char*>(data), size});
  fuzzing::parse(size, path.native(), [&] {
    const GgufFile file(path);
    for (const auto& [key, value] : file.metadata())
      if (const auto* numbers = std::get_if<GgufNumbers>(&value))
        for (size_t i = 0; i < numbers->size(); ++i) static_cast<void>((*numbers)[i]);
    for (const auto& [name, tensor] : file.tensors()) read_numbers(tensor);
    const auto found = read_gguf_tokenizer(file, path.string());
    if (found.tokenizer) found.tokenizer->encode("Two heads, isn't it?\n 42", path.string());
  });
  return 0;
}
