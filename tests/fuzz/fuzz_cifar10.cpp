// Files of CIFAR-10's binary version.
#include "experiments/data/formats/cifar10_file.h"
#include "tests/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headlab;
  fuzzing::parse(size, "a.bin", [&] {
    for (const auto& image : parse_cifar10({reinterpret_cast<const char*>(data), size}, "a.bin"))
      fuzzing::touch(image.pixels, kCifarChannels * kCifarSide * kCifarSide);
  });
  return 0;
}
