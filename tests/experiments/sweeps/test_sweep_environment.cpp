// What the processes of a sweep are given.
#include "experiments/sweeps/sweep_run.h"
#include "tests/catch.h"

namespace headlab::test_sweep_environment {
namespace {

std::string given(const SweepOrders& orders, int64_t slot, int64_t rank, const char* name) {
  const auto all = environment_of(orders, slot, rank, "29500");
  const auto found = all.find(name);
  return found == all.end() ? "-" : found->second;
}

}  // namespace

TEST_CASE("each slot of a sweep has a GPU of its own, in turn") {
  const SweepOrders orders{.jobs = 3, .gpus = {"4", "GPU-7"}};
  CHECK(given(orders, 0, 0, "CUDA_VISIBLE_DEVICES") == "4");
  CHECK(given(orders, 1, 0, "CUDA_VISIBLE_DEVICES") == "GPU-7");
  CHECK(given(orders, 2, 0, "CUDA_VISIBLE_DEVICES") == "4");
  CHECK(given(orders, 0, 0, "RANK") == "-");
  CHECK(given({.jobs = 2}, 1, 0, "CUDA_VISIBLE_DEVICES") == "-");
}

TEST_CASE("the processes of a training meet, and each has a GPU") {
  const SweepOrders orders{.jobs = 2, .ranks = 2, .gpus = {"0", "1", "2", "3"}};
  CHECK(given(orders, 1, 0, "CUDA_VISIBLE_DEVICES") == "2");
  CHECK(given(orders, 1, 1, "CUDA_VISIBLE_DEVICES") == "3");
  CHECK(given(orders, 1, 1, "RANK") == "1");
  CHECK(given(orders, 1, 1, "WORLD_SIZE") == "2");
  CHECK(given(orders, 1, 1, "MASTER_ADDR") == "127.0.0.1");
  CHECK(given(orders, 1, 1, "MASTER_PORT") == "29500");
}

}  // namespace headlab::test_sweep_environment
