// Files of expected statistics of outputs, weights and routes.
#include <filesystem>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/cases/case_file.h"
#include "experiments/models/named_tensors.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/scratch.h"

namespace headlab::test_statistics_cases {
namespace {

const std::filesystem::path kFolder =
    std::filesystem::path(build::kSourceDir) / "tests/golden/statistics";

struct File {
  std::string name, perturbed;  // a tensor that its numbers depend on
  size_t tensors;               // expected
};
const std::vector<File> kFiles{{"outputs", "in.value", 9},
                               {"outputs_causal", "in.output_weight", 9},
                               {"circuits", "w.1.v.weight", 9},
                               {"routes", "in.gates", 9}};

// The file with one of its tensors changed.
std::filesystem::path changed(const Scratch& scratch, const std::string& name,
                              const std::function<void(NamedTensors&)>& change) {
  std::map<std::string, std::string> metadata;
  auto tensors = read_tensors(kFolder / (name + ".safetensors"), &metadata);
  change(tensors);
  write_tensors(scratch / "case.safetensors", tensors, metadata);
  return scratch / "case.safetensors";
}

}  // namespace

TEST_CASE("files of statistics of outputs, circuits and routes are reproduced",
          "[golden][outputs][circuits][routes]") {
  for (const auto& file : kFiles) {
    const auto judged =
        judge_case(kFolder / (file.name + ".safetensors"), at::kCPU, Backend::kAuto);
    REQUIRE(judged.verdicts.size() == file.tensors);
    for (const auto& verdict : judged.verdicts) {
      INFO(file.name << ": " << verdict_line(verdict));
      CHECK(verdict.pass);
    }
  }
}

TEST_CASE("a perturbed file of statistics fails", "[golden][outputs][circuits][routes]") {
  const Scratch scratch;
  for (const auto& file : kFiles) {
    INFO(file.name);
    const auto path = changed(scratch, file.name, [&](NamedTensors& tensors) {
      tensors.at(file.perturbed).view(-1)[3] += 1e-3;
    });
    CHECK_FALSE(all_pass(judge_case(path, at::kCPU, Backend::kAuto).verdicts));
  }
}

TEST_CASE("numbers beyond a length do not count", "[golden][outputs]") {
  const Scratch scratch;
  const auto path = changed(scratch, "outputs", [](NamedTensors& tensors) {
    REQUIRE(tensors.at("in.length")[1].item<int64_t>() == 5);
    tensors.at("in.attention").select(1, 1).narrow(2, 5, 4).fill_(7);
    tensors.at("in.attention").select(1, 1).narrow(3, 5, 4).fill_(3);
    tensors.at("in.hidden").select(1, 1).narrow(1, 5, 4).fill_(9);
  });
  CHECK(all_pass(judge_case(path, at::kCPU, Backend::kAuto).verdicts));
}

TEST_CASE("a file of statistics that lacks a tensor is named", "[golden][outputs][circuits]") {
  const Scratch scratch;
  const auto lacks = [&](const std::string& file, const std::string& tensor) {
    const auto path = changed(scratch, file, [&](NamedTensors& tensors) { tensors.erase(tensor); });
    CHECK_THROWS_WITH(judge_case(path, at::kCPU, Backend::kAuto),
                      Catch::Contains(path.string() + ": " + tensor + " is missing"));
  };
  lacks("outputs", "in.value");
  lacks("circuits", "w.2.k.weight");
  lacks("routes", "in.length");
  const auto path = changed(scratch, "circuits", [](NamedTensors& tensors) {
    tensors["w.0.q.weight"] = at::zeros({20, 19}, at::kDouble);
  });
  CHECK_THROWS_WITH(judge_case(path, at::kCPU, Backend::kAuto),
                    Catch::Contains("w.0.q.weight is [20, 19], the layer wants [20, 20]"));
}

}  // namespace headlab::test_statistics_cases
