// Golden files of every format, damaged one place after the other: each is judged or refused as
// wrong data by its name, and never ends the program in another way.
#include <filesystem>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/cases/case_file.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/scratch.h"

namespace headlab::test_damaged_cases {
namespace {

const std::filesystem::path kGolden = std::filesystem::path(build::kSourceDir) / "tests/golden";

struct Case {
  NamedTensors tensors;
  std::map<std::string, std::string> metadata;
};

Case read(const std::string& file) {
  Case whole;
  whole.tensors = read_tensors(kGolden / file, &whole.metadata);
  return whole;
}

// Writes it and judges it: whether it was refused.
bool refused(const Scratch& scratch, const Case& damaged) {
  const auto path = scratch / "damaged.safetensors";
  write_tensors(path, damaged.tensors, damaged.metadata);
  try {
    judge_case(path, at::kCPU, Backend::kAuto);
    return false;
  } catch (const DataError& e) {
    CHECK_THAT(e.what(), Catch::Matchers::StartsWith(path.string()));
    return true;
  }
}

// One a format, the smallest.
const std::vector<std::string> kFiles{"mha/llama_gqa.safetensors",
                                      "collaborative/convert_bert.safetensors",
                                      "collaborative/convert_cp_shared_r8.safetensors",
                                      "dependency/align.safetensors",
                                      "dependency/ewt_dev_20.safetensors",
                                      "gate_target/layer_target.safetensors",
                                      "gate_target/subset_cold.safetensors",
                                      "importance/bidirectional_padded.safetensors",
                                      "pruning/delta.safetensors",
                                      "pruning/order_free.safetensors",
                                      "pruning/slice_gqa.safetensors",
                                      "statistics/circuits.safetensors",
                                      "statistics/fixtures_causal.safetensors",
                                      "statistics/outputs.safetensors",
                                      "statistics/routes.safetensors",
                                      "tasks/fuzzy_recall_next.safetensors",
                                      "tasks/memorization.safetensors",
                                      "tasks/recall_64_4_all_256.safetensors"};

// Of all damages together those that are `stride` apart.
void damage_tensors(const std::string& file, int stride) {
  const Scratch scratch;
  const Case whole = read(file);
  REQUIRE_FALSE(refused(scratch, whole));
  int refusals = 0, next = 0;
  for (const auto& [name, tensor] : whole.tensors) {
    if (name.starts_with("out.") || name.starts_with("grad.")) continue;
    INFO(file << ": " << name);
    const std::vector<Tensor> others{
        {},
        at::scalar_tensor(1, tensor.options()),
        at::zeros({3}, tensor.options()),
        at::zeros({0}, tensor.options()),
        at::zeros({2, 1, 3, 1, 2, 1}, tensor.options()),
        tensor.to(tensor.is_floating_point() ? at::kByte : at::kDouble),
        at::full_like(tensor, 100),
        tensor.scalar_type() == at::kByte ? at::zeros_like(tensor) : at::full_like(tensor, -1)};
    for (size_t n = 0; n < others.size(); ++n) {
      if (next++ % stride != 0) continue;
      INFO("other " << n);
      Case damaged = whole;
      damaged.tensors[name] = others[n];
      if (!others[n].defined()) damaged.tensors.erase(name);
      refusals += refused(scratch, damaged);
    }
  }
  CHECK(refusals > 0);
}

void damage_metadata(const std::string& file, int stride) {
  const Scratch scratch;
  const Case whole = read(file);
  int refusals = 0, next = 0;
  for (const auto& [key, text] : whole.metadata)
    for (const std::string other :
         {"(none)", "", "x", "{", "[]", "{}", "null", "-1", "1e400", "3", "\"\\ud800\"",
          "[-1, 99999999999]", R"({"from": 3, "to": {}})", R"({"attention": []})"}) {
      if (next++ % stride != 0) continue;
      INFO(file << ": " << key << " = " << other);
      Case damaged = whole;
      damaged.metadata[key] = other;
      if (other == "(none)") damaged.metadata.erase(key);
      refusals += refused(scratch, damaged);
    }
  CHECK(refusals > 0);
}

TEST_CASE("a golden file of every format with a damaged tensor is refused by name or judged") {
  for (const auto& file : kFiles) damage_tensors(file, 7);
}

TEST_CASE("a golden file of every format with damaged metadata is refused by name or judged") {
  for (const auto& file : kFiles) damage_metadata(file, 5);
}

TEST_CASE("a golden file of every format is refused by name or judged, however it is damaged",
          "[.slow]") {
  for (const auto& file : kFiles) {
    damage_tensors(file, 1);
    damage_metadata(file, 1);
  }
}

}  // namespace
}  // namespace headlab::test_damaged_cases
