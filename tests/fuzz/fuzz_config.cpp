// YAML of a user: parsed, read into a block with fields of every type, written and read back.
#include "core/config/config.h"
#include "tests/fuzz/fuzzing.h"

namespace headlab {
namespace {

struct Inner : Block {
  int64_t layers = 2;
  double rate = 0.5;
  std::optional<int64_t> window;
  std::vector<int64_t> heads{1, 2};

  void visit(Fields& f) override {
    f("layers", layers, "layers", between(1, 100));
    f("rate", rate, "rate", above(0));
    f("window", window, "window", at_least(1));
    f("heads", heads, "heads", at_least(0));
  }
};

struct Whole : Block {
  std::string name = "a", word = "mha";
  int64_t seed = 1;
  bool causal = true;
  FilePath path;
  std::optional<bool> bias;
  std::optional<double> scale;
  std::vector<double> rates;
  std::vector<std::string> words;
  Inner model;

  void visit(Fields& f) override {
    f("name", name, "name");
    f("word", word, "word", one_of({"mha", "gqa"}));
    f("seed", seed, "seed");
    f("causal", causal, "causal");
    f("path", path, "path");
    f("bias", bias, "bias");
    f("scale", scale, "scale", from_below(0, 1));
    f("rates", rates, "rates", above(0));
    f("words", words, "words");
    f("model", model, "model");
  }
};

void read(std::string_view text) {
  const ConfigNode node = parse_config(std::string(text), "fuzz.yaml", "/fuzz");
  const auto same = [&](const std::string& written) {
    return parse_config(written, "written.yaml", "/fuzz") == node;
  };
  fuzzing::require(same(to_yaml(node)), "what to_yaml wrote reads back as something else");
  Whole whole;
  read_config(whole, node);
  Whole again;
  read_config(again, parse_config(to_yaml(write_block(whole)), "written.yaml", "/fuzz"));
  fuzzing::require(write_block(again) == write_block(whole), "a block reads back as another");
}

}  // namespace
}  // namespace headlab

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headlab;
  fuzzing::parse(size, "fuzz.yaml", [&] { read({reinterpret_cast<const char*>(data), size}); });
  return 0;
}
