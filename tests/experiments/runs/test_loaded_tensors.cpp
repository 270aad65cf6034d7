// Tensors of a checkpoint on their way into a model.
#include "core/errors.h"
#include "experiments/runs/checkpoint.h"
#include "tests/catch.h"
#include "tests/tensors_testing.h"

namespace headlab::test_loaded_tensors {
namespace {

using Catch::Contains;
using testing::same;

struct Inner : torch::nn::Module {
  Inner() {
    weight = register_parameter("weight", torch::zeros({2, 3}));
    alive = register_buffer("alive", torch::zeros({4}, torch::kByte));
  }
  torch::Tensor weight, alive;
};

struct Outer : torch::nn::Module {
  Outer() {
    scale = register_parameter("scale", torch::zeros({}));
    inner = register_module("inner", std::make_shared<Inner>());
  }
  torch::Tensor scale;
  std::shared_ptr<Inner> inner;
};

NamedTensors outer_tensors() {
  return {{"scale", torch::scalar_tensor(2.5)},
          {"inner.weight", torch::arange(6.f).reshape({2, 3})},
          {"inner.alive", torch::ones({4}, torch::kByte)}};
}

TEST_CASE("tensors are copied into parameters and buffers in place") {
  Outer module;
  const torch::Tensor weight = module.inner->weight;
  load_into(module, outer_tensors());
  CHECK(same(module_tensors(module), outer_tensors()));
  CHECK(weight.equal(outer_tensors().at("inner.weight")));
  CHECK(weight.requires_grad());
  CHECK(module_tensors(module).at("inner.weight").is_same(weight));
}

TEST_CASE("a float64 module takes float32 tensors, and no other dtypes mix") {
  Outer module;
  module.to(torch::kDouble);
  module.inner->alive = module.inner->alive.to(torch::kByte);
  NamedTensors tensors = outer_tensors();
  tensors["inner.alive"] = tensors["inner.alive"].to(torch::kDouble);
  load_into(module, tensors);
  CHECK(module.inner->weight.equal(outer_tensors().at("inner.weight").to(torch::kDouble)));

  Outer narrow;
  NamedTensors wide = outer_tensors();
  wide["inner.weight"] = wide["inner.weight"].to(torch::kDouble);
  CHECK_THROWS_WITH(load_into(narrow, wide),
                    Contains("inner.weight: is Double [2, 3], should be Float [2, 3]"));
}

TEST_CASE("everything that does not fit a model is listed at once, and nothing is copied") {
  Outer module;
  NamedTensors tensors = outer_tensors();
  tensors.erase("scale");
  tensors["inner.weight"] = torch::ones({3, 2});
  tensors["inner.alive"] = torch::ones({4}, torch::kLong);
  tensors["other"] = torch::ones({7});
  CHECK_THROWS_WITH(load_into(module, tensors),
                    "the checkpoint does not fit the model:\n"
                    "  inner.alive: is Long [4], should be Byte [4]\n"
                    "  inner.weight: is Float [3, 2], should be Float [2, 3]\n"
                    "  scale: is missing, should be Float []\n"
                    "  other: Float [7] has no place in the model");
  tensors.erase("other");
  CHECK_THROWS_AS(load_into(module, tensors), RunError);
  CHECK(module.inner->weight.eq(0).all().item<bool>());
  CHECK(module.inner->alive.eq(0).all().item<bool>());
}

TEST_CASE("layers that were saved sliced are found with the heads they have left") {
  CHECK(sliced_layers(outer_tensors()).empty());
  const std::map<std::string, std::vector<int64_t>> layers = {{"blocks.0.attention", {0, 3}},
                                                              {"blocks.2.attention", {}}};
  CHECK(sliced_layers({{"blocks.0.attention.head_ids", torch::tensor({0, 3}, torch::kLong)},
                       {"blocks.0.attention.kv_map", torch::tensor({0, 1}, torch::kLong)},
                       {"blocks.1.attention.alive", torch::ones({4}, torch::kByte)},
                       {"blocks.2.attention.head_ids", torch::empty({0}, torch::kLong)}}) ==
        layers);
}

}  // namespace
}  // namespace headlab::test_loaded_tensors
