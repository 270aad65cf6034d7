// Processes of one run, which threads stand for: each has a connection of its own.
#include <ATen/ATen.h>

#include <csignal>
#include <exception>
#include <functional>
#include <future>

#include "core/config/config.h"
#include "experiments/ranks/comm.h"
#include "tests/catch.h"

namespace headlab::test_comm {
namespace {

// Calls work(comm) as each of `size` ranks, at once; what the first of them threw, or "".
std::string as_ranks(int size, const std::function<void(Comm&)>& work,
                     const CommSettings& settings = {}) {
  const int port = free_port();
  std::vector<std::future<void>> all;
  for (int rank = 0; rank < size; ++rank)
    all.push_back(std::async(std::launch::async, [=] {
      const Launch launch{
          .rank = rank, .size = size, .meets = true, .address = "127.0.0.1", .port = port};
      work(*make_comm(launch, settings));
    }));
  std::string said;
  for (auto& one : all) try {
      one.get();
    } catch (const std::exception& error) {
      if (said.empty()) said = error.what();
    }
  UNSCOPED_INFO(said);
  return said;
}

// Numbers of a rank whose sum depends on its order.
at::Tensor numbers_of(int rank, int64_t count, at::ScalarType type) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(rank) + 1);
  const auto wide = at::randn({count}, generator).exp().mul(rank % 2 == 0 ? 1e3 : 1e-3);
  return wide.to(type);
}

at::Tensor sum_in_order(int size, int64_t count, at::ScalarType type) {
  auto sum = numbers_of(0, count, type);
  for (int rank = 1; rank < size; ++rank) sum += numbers_of(rank, count, type);
  return sum;
}

}  // namespace

TEST_CASE("sums have the bits of one process that adds in the order of the ranks") {
  const int size = GENERATE(1, 2, 3, 4);
  const auto type = GENERATE(at::kFloat, at::kDouble, at::kLong);
  for (const int64_t count : {1, 7, 1000}) {
    const auto expected = sum_in_order(size, count, type);
    const auto said = as_ranks(size, [&](Comm& comm) {
      auto x = numbers_of(comm.rank(), count, type);
      comm.sum(x);
      if (!x.equal(expected)) throw std::runtime_error("another sum");
    });
    CHECK(said.empty());
  }
}

TEST_CASE("so have sums that are cut into shares, of any length") {
  constexpr int64_t kAbove16MiB = (4 << 20) + 5;  // no multiple of 3 or 4
  const int size = GENERATE(3, 4);
  const auto expected = sum_in_order(size, kAbove16MiB, at::kFloat);
  const auto said = as_ranks(size, [&](Comm& comm) {
    auto x = numbers_of(comm.rank(), kAbove16MiB, at::kFloat);
    comm.sum(x);
    if (!x.equal(expected)) throw std::runtime_error("another sum");
  });
  CHECK(said.empty());
}

TEST_CASE("the engine's own order of sums is within rounding, and the same on all ranks") {
  constexpr int kSize = 3;
  constexpr int64_t kCount = 1000;
  const auto expected = sum_in_order(kSize, kCount, at::kDouble).to(at::kFloat);
  std::vector<at::Tensor> sums(kSize);
  const auto said = as_ranks(kSize,
                             [&](Comm& comm) {
                               auto x = numbers_of(comm.rank(), kCount, at::kFloat);
                               comm.sum(x);
                               sums[comm.rank()] = x;
                             },
                             {.fast_sum = true});
  CHECK(said.empty());
  CHECK(sums[0].allclose(expected, 1e-6, 0));
  CHECK(sums[1].equal(sums[0]));
  CHECK(sums[2].equal(sums[0]));
}

TEST_CASE("texts of any length reach all") {
  const auto said = as_ranks(3, [](Comm& comm) {
    const auto text = [](int rank) { return std::string(static_cast<size_t>(rank) * 5, 'x'); };
    if (comm.gather(text(comm.rank())) != std::vector{text(0), text(1), text(2)} ||
        comm.gather("") != std::vector<std::string>(3) ||
        !comm.broadcast(text(comm.rank())).empty() ||
        comm.broadcast(text(2 - comm.rank())) != text(2))
      throw std::runtime_error("another text");
  });
  CHECK(said.empty());
}

TEST_CASE("a connection that another rank has closed ends no process") {
  const auto said = as_ranks(1, [](Comm&) { raise(SIGPIPE); });
  CHECK(said.empty());
}

TEST_CASE("texts that differ are an error of all ranks, which names one") {
  const auto said = as_ranks(
      3, [](Comm& comm) { require_same(comm, "the data", comm.rank() == 2 ? "other" : "text"); });
  CHECK(said == "the data of rank 2 differs from that of rank 0");
}

TEST_CASE("a rank that leaves tells the others its code and its reason") {
  const auto said = as_ranks(3, [](Comm& comm) {
    auto x = at::ones({4});
    comm.sum(x);
    if (comm.rank() == 1) {
      comm.leave(5, "the loss is not finite");
      return;
    }
    try {
      comm.sum(x);
    } catch (const LostRank& lost) {
      if (lost.code() == 5 && lost.what() == std::string("lost rank 1: the loss is not finite"))
        return;
      throw;
    }
    throw std::runtime_error("a sum without one of the ranks");
  });
  CHECK(said.empty());
}

TEST_CASE("a rank that goes without a word leaves a run that can go on") {
  const auto said = as_ranks(2, [](Comm& comm) {
    if (comm.rank() == 1) return;
    auto x = at::ones({4});
    try {
      comm.sum(x);
    } catch (const LostRank& lost) {
      if (lost.code() == 75 && std::string(lost.what()).starts_with("lost rank 1: ")) return;
      throw;
    }
    throw std::runtime_error("a sum without one of the ranks");
  });
  CHECK(said.empty());
}

}  // namespace headlab::test_comm
