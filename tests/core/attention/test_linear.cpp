// The linear layer's product against torch's, whichever library this machine takes.
#include <fcntl.h>
#include <torch/csrc/autograd/autograd.h>
#include <unistd.h>

#include <cstdio>

#include "tests/catch.h"
#include "tests/heads_testing.h"
#include "tests/scratch.h"

namespace torch::verbose {
int _mkldnn_set_verbose(int level);  // of libtorch_cpu, whose header no wheel has
}

namespace headlab::test_linear {
namespace {

struct Result {
  Tensor y, for_x, for_weight, for_bias;
};

template <class Linear>
Result run(const Linear& function, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  auto a = x.detach().requires_grad_(), w = weight.detach().requires_grad_();
  auto b = bias.defined() ? bias.detach().requires_grad_() : Tensor();
  const auto y = function(a, w, b);
  (y * at::arange(y.numel(), y.options()).view_as(y).sin()).sum().backward();
  return {y, a.grad(), w.grad(), bias.defined() ? b.grad() : Tensor()};
}

TEST_CASE("projections equal torch's linear layer in values and gradients") {
  torch::manual_seed(4);
  const auto near = [](const Tensor& a, const Tensor& b) {
    REQUIRE(a.sizes() == b.sizes());
    if (a.numel() > 0) CHECK(testing::difference(a, b) < 1e-5 * (1 + b.abs().max().item<double>()));
  };
  for (auto type : {at::kFloat, at::kDouble})
    for (const auto& [in, out] :
         std::vector<std::pair<int64_t, int64_t>>{{24, 40}, {40, 24}, {7, 0}})
      for (int64_t tokens : {0, 1, 33})
        for (bool biased : {false, true}) {
          INFO(in << " to " << out << ", " << tokens << " tokens, bias " << biased);
          const auto x = at::randn({2, in, tokens}, type).transpose(1, 2);  // not contiguous
          const auto weight = at::randn({out, in}, type);
          const auto bias = biased ? at::randn({out}, type) : Tensor();
          const auto got = run([](auto&&... a) { return project(a...); }, x, weight, bias);
          const auto want = run([](auto&&... a) { return at::linear(a...); }, x, weight, bias);
          near(got.y, want.y);
          near(got.for_x, want.for_x);
          near(got.for_weight, want.for_weight);
          if (biased) near(got.for_bias, want.for_bias);
          at::NoGradGuard no_grad;
          near(project(x, weight, bias), want.y);
        }
}

TEST_CASE("a frozen weight or input of a projection gets no gradient, the other one does") {
  torch::manual_seed(4);
  auto x = at::randn({64, 24}), weight = at::randn({40, 24}).requires_grad_();
  project(x, weight).sum().backward();
  CHECK(testing::difference(weight.grad(), x.sum(0).expand({40, 24})) < 1e-4);
  CHECK_FALSE(x.grad().defined());
  auto frozen = at::randn({40, 24});
  x.requires_grad_();
  project(x, frozen).sum().backward();
  CHECK(testing::difference(x.grad(), frozen.sum(0).expand({64, 24})) < 1e-4);
}

// Of one library, whichever this machine would take.
struct Library {
  explicit Library(bool onednn) { use_onednn(onednn); }
  ~Library() { use_onednn({}); }
};

// What oneDNN says on stdout of the products that `use` makes.
template <class Use>
std::string said_by_onednn(const Use& use) {
  const Scratch scratch;
  const auto file = scratch / "said";
  std::fflush(stdout);
  const int kept = dup(STDOUT_FILENO), said = open(file.c_str(), O_WRONLY | O_CREAT, 0600);
  dup2(said, STDOUT_FILENO);
  torch::verbose::_mkldnn_set_verbose(1);
  use();
  torch::verbose::_mkldnn_set_verbose(0);
  std::fflush(stdout);
  dup2(kept, STDOUT_FILENO);
  close(kept), close(said);
  return read_bytes(file);
}

TEST_CASE("some columns of a wider weight are no reason for oneDNN's reference code") {
  if (!at::globalContext().hasMKLDNN()) return testing::skip("this LibTorch has no oneDNN");
  const Library library(/*onednn=*/true);
  const auto x = at::randn({96, 24});
  const auto columns = at::randn({128, 192}).narrow(1, 48, 24),
             of_transposed = at::randn({24, 192}).t().narrow(0, 48, 128);  // strides (1, 192)
  const auto said = said_by_onednn([&] {
    for (const auto& weight : {columns, of_transposed}) {
      auto leaf = weight.detach().requires_grad_();
      project(x, leaf).sum().backward();
      product(x, weight);
    }
  });
  INFO(said);
  REQUIRE(said.find("inner_product") != std::string::npos);
  REQUIRE(said.find(",ref:") == std::string::npos);
  REQUIRE(testing::difference(product(x, columns), x.mm(columns.t())) < 1e-4);
}

TEST_CASE("second derivatives through projections are torch's, by either library") {
  for (const bool onednn : {false, true})
    for (const bool biased : {false, true}) {
      INFO((onednn ? "oneDNN" : "torch") << (biased ? ", biased" : ""));
      const Library library(onednn);
      torch::manual_seed(4);
      const auto x = at::randn({2, 33, 24}), weight = at::randn({40, 24}), bias = at::randn({40}),
                 cotangent = at::randn({2, 33, 40});
      const auto seconds = [&](const auto& function) {
        const auto leaves = [&] {
          std::vector<Tensor> all{x.clone().requires_grad_(), weight.clone().requires_grad_()};
          if (biased) all.push_back(bias.clone().requires_grad_());
          return all;
        }();
        const auto y = function(leaves[0], leaves[1], biased ? leaves[2] : Tensor());
        const auto firsts = torch::autograd::grad({(y.tanh() * cotangent).sum()}, leaves, {},
                                                  /*retain_graph=*/true, /*create_graph=*/true);
        Tensor sum;
        for (const auto& first : firsts) {
          const auto square = first.square().sum();
          sum = sum.defined() ? sum + square : square;
        }
        auto all = torch::autograd::grad({sum}, leaves);
        all.insert(all.end(), firsts.begin(), firsts.end());
        return all;
      };
      const auto got = seconds([](auto&&... a) { return project(a...); }),
                 want = seconds([](auto&&... a) { return at::linear(a...); });
      for (size_t n = 0; n < want.size(); ++n) {
        INFO("tensor " << n);
        CHECK(testing::difference(got[n], want[n]) <
              1e-5 * (1 + want[n].abs().max().item<double>()));
      }
    }
}

}  // namespace
}  // namespace headlab::test_linear
