// The authors' own numbers: every case file of every registered kind, and the worked example.
#include <filesystem>

#include "core/errors.h"
#include "experiments/cases/layer_case.h"
#include "experiments/conversion/convert.h"
#include "experiments/models/named_tensors.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/heads_testing.h"
#include "tests/isa_testing.h"
#include "tests/scratch.h"

namespace headlab::test_golden {
using namespace testing;

namespace {

const std::filesystem::path kGolden = std::filesystem::path(build::kSourceDir) / "tests/golden";

bool is_case(const std::filesystem::path& file) {
  std::map<std::string, std::string> metadata;
  read_tensors(file, &metadata);
  return metadata["headlab_case"] == "1";
}

}  // namespace

TEST_CASE("every case of every registered kind is reproduced", "[golden]") {
  HEADLAB_WITH_EVERY_ISA;
  auto folders = head_names();
  std::erase(folders, "shared_kv");  // of which no authors' code is known
  for (const char* more : {"gated_positions", "dcmha_light"}) folders.emplace_back(more);
  for (const auto& folder : folders) {
    int cases = 0;
    REQUIRE(std::filesystem::exists(kGolden / folder));
    for (const auto& entry : std::filesystem::directory_iterator(kGolden / folder)) {
      if (!is_case(entry.path())) continue;
      for (auto backend : {Backend::kAuto, Backend::kEager}) {
        LayerCase layer(entry.path(), at::kCPU);
        const auto verdicts =
            judge(layer.compute({}, backend), layer.expected(), layer.tolerance());
        REQUIRE(!verdicts.empty());
        for (const auto& verdict : verdicts) {
          INFO(entry.path().string() << "\n" << verdict_line(verdict));
          CHECK(verdict.pass);
        }
      }
      ++cases;
    }
    REQUIRE(cases > 0);
  }
}

TEST_CASE("a perturbed weight fails its case", "[golden]") {
  const auto file = kGolden / "mha" / "llama_gqa.safetensors";
  std::map<std::string, std::string> metadata;
  auto tensors = read_tensors(file, &metadata);
  tensors["w.q.weight"][3][5] += 1e-2;
  const Scratch scratch;
  const auto perturbed = scratch / "perturbed.safetensors";
  write_tensors(perturbed, tensors, metadata);
  LayerCase layer(perturbed, at::kCPU);
  REQUIRE_FALSE(all_pass(judge(layer.compute({}), layer.expected(), layer.tolerance())));

  tensors.erase("w.k.weight");
  write_tensors(perturbed, tensors, metadata);
  REQUIRE_THROWS_WITH(LayerCase(perturbed, at::kCPU), Catch::Contains("w.k.weight is missing"));
  tensors["w.k.weight"] = at::zeros({3, 3});
  write_tensors(perturbed, tensors, metadata);
  REQUIRE_THROWS_WITH(LayerCase(perturbed, at::kCPU),
                      Catch::Contains("the layer wants Float [8, 24]"));
  tensors = read_tensors(file);
  tensors["w.r.weight"] = at::zeros({3});
  write_tensors(perturbed, tensors, metadata);
  REQUIRE_THROWS_WITH(LayerCase(perturbed, at::kCPU),
                      Catch::Contains("does not know the tensor w.r.weight"));
  metadata["config"] = R"({"d_model": 24, "heads": 5, "attention": {"kind": "mha"}})";
  write_tensors(perturbed, tensors, metadata);
  REQUIRE_THROWS_WITH(LayerCase(perturbed, at::kCPU), Catch::Contains("choose a divisor"));
}

TEST_CASE("the worked example: the cat sat on mat", "[golden]") {
  const auto t = read_tensors(kGolden / "mha" / "worked_example.safetensors");
  const auto Q = t.at("text.Q").unsqueeze(0), K = t.at("text.K").unsqueeze(0),
             V = t.at("text.V").unsqueeze(0);
  auto near = [&](const Tensor& got, const char* name, double tolerance) {
    INFO(name);
    REQUIRE(difference(got, t.at(name)) < tolerance);
  };
  for (int64_t H : {1, 2, 4}) {
    const auto ctx = HeadCall::from_context({});
    const double scale = 1 / std::sqrt(4. / static_cast<double>(H));
    const auto q = split_heads(Q, H), k = split_heads(K, H), v = split_heads(V, H);
    const auto z = scores(q, k, ctx, scale);
    const auto a = masked_softmax(z, {});
    const auto y = merge_heads(attend(q, k, v, ctx, scale), ctx)[0];
    const auto suffix = std::to_string(H);
    near(a[0], ("exact.weights_h" + suffix).c_str(), 1e-12);
    near(y, ("exact.output_h" + suffix).c_str(), 1e-12);
    if (H == 1)
      near(a[0][0][1].index_select(0, at::tensor({0, 1, 2})), "text.single_head_cat", 5e-5);
    if (H != 2) continue;
    near(z[0] / scale, "exact.scores_h2", 1e-12);  // both print q k^T without the scale
    near(z[0] / scale, "text.scores", 5e-5);
    near(a[0], "text.weights", 5e-5);
    near(a[0].mean(0), "exact.averaged_h2", 1e-12);
    near(y, "text.output", 5e-5);
    near(at::matmul(y, t.at("exact.permutation")), "exact.permuted_output", 1e-12);
    for (int64_t head : {0, 1}) {
      auto pruned = HeadCall::from_context({});
      pruned.gates = at::ones({1, 2, 1}, at::kDouble);
      pruned.gates[0][head] = 0;
      const auto without = merge_heads(attend(q, k, v, pruned, scale), pruned)[0];
      near(without, head == 0 ? "exact.pruned_0" : "exact.pruned_1", 1e-12);
      REQUIRE((y - without).norm().item<double>() ==
              Approx(t.at("exact.prune_norms")[head].item<double>()).epsilon(1e-10));
    }
  }
}

TEST_CASE("grouped heads are the mean of a group's heads", "[golden]") {
  const auto t = read_tensors(kGolden / "mha" / "gqa_mean_pooling.safetensors");
  for (int64_t groups : {3, 2, 1})
    for (const char* name : {"k.weight", "k.bias", "v.weight", "v.bias"}) {
      const auto before = t.at(std::string("before.w.") + name);
      const auto after = t.at("after" + std::to_string(groups) + ".w." + name);
      REQUIRE(difference(mean_of_groups(before, groups, 4), after) < 1e-12);
    }
}

TEST_CASE("rotary positions, ALiBi slopes and relative buckets have their published values",
          "[golden]") {
  const auto x = at::tensor({1., 2., 3., 4.}, at::kDouble).view({1, 1, 1, 4});
  const auto at_three = at::tensor({int64_t{3}});
  auto near = [](const Tensor& got, std::vector<double> want) {
    REQUIRE(difference(got.flatten(), at::tensor(want, at::kDouble)) < 5e-7);
  };
  near(Rotary().rotate(x, at_three), {-1.413353, 1.879118, -2.828857, 4.058191});
  near(Rotary(10000, RopeLayout::kInterleaved).rotate(x, at_three),
       {-1.272233, -1.838865, 2.878668, 4.088187});
  near(Rotary(10000, RopeLayout::kHalf, 0.5).rotate(x, at_three), {-1.272233, -1.838865, 3, 4});
  near(alibi_slopes(6), {1. / 4, 1. / 16, 1. / 64, 1. / 256, 1. / 2, 1. / 8});
  const std::vector<int64_t> distances{-200, -64, -20, -9, 0, 1, 8, 64};
  const std::vector<int64_t> buckets{15, 14, 10, 8, 0, 17, 24, 30};
  for (size_t n = 0; n < distances.size(); ++n)
    REQUIRE(relative_bucket(distances[n], 32, 128, false) == buckets[n]);
  REQUIRE(relative_bucket(-64, 32, 128, true) == 26);
  REQUIRE(relative_bucket(-20, 32, 128, true) == 17);
  REQUIRE(relative_bucket(-9, 32, 128, true) == 9);
  REQUIRE(relative_bucket(5, 32, 128, true) == 0);
}

}  // namespace headlab::test_golden
