// Statistics of dcmha against its parameters, written as section 2.3 of the paper stands.
#include <fmt/format.h>

#include <filesystem>

#include "experiments/analysis/maps/patterns.h"
#include "experiments/cases/layer_case.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/dcmha_testing.h"

namespace headlab::test_dcmha_statistics {
using namespace testing;

namespace {

constexpr int64_t B = 2, T = 9, D = 20, H = 4, R = 2;
const std::vector<int64_t> kLengths{T, 5}, kAlive{0, 2, 3};

// What branch c makes of every token, for the alive heads alone: rows w1, w2 and gates.
struct BranchOfTokens {
  Tensor w1, w2, g;  // [B,N,R,h], [B,N,R,h], [B,N,h]
};
BranchOfTokens branch_of_tokens(AttentionHeads& heads, const Tensor& x, int64_t c) {
  const auto p = heads.named_parameters();
  const auto alive = at::tensor(kAlive);
  const auto hidden = at::gelu(x.matmul(p["compose.dw1"].select(1, c)), "tanh");  // [B,N,K]
  const auto u = at::einsum("bnk,krh->bnrh", {hidden, p["compose.qkw"][c]}).index_select(3, alive);
  const auto g = x.matmul(p["compose.dd"]).tanh().narrow(2, c * H, H).index_select(2, alive);
  const auto rows = u.narrow(2, 0, R);
  return {rows / (rows.square().mean(3, true) + 1e-6).sqrt(), u.narrow(2, R, R), g};
}

// [B,N,h,h], from and to: what a branch adds to the matrix of a pair.
Tensor matrix_of(const BranchOfTokens& branch) {
  return at::einsum("bnrm,bnrk->bnmk", {branch.w1, branch.w2}) + at::diag_embed(branch.g);
}

Tensor valid_tokens() { return at::arange(T) < at::tensor(kLengths).unsqueeze(1); }  // [B,T]

}  // namespace

TEST_CASE("statistics of a composition have the values of the worked case", "[dcmha]") {
  LayerCase layer(
      std::filesystem::path(build::kSourceDir) / "tests/golden/dcmha/static.safetensors", at::kCPU);
  const auto computed = layer.compute({.statistics = true});
  auto near = [&](const std::string& name, const std::vector<double>& want) {
    INFO(name);
    REQUIRE(difference(computed.at("stat." + name), at::tensor(want, at::kDouble)) < 1e-6);
  };
  near("composed_row_sum", {0.778624, 1.443240, 0.644136, -0.180298});
  near("composed_negative_share", {0.241206, 0.166803, 0.270367, 0.503271});
  near("composed_cosine", {0.114277});
  near("composed_effective_rank", {3.727591});
  const std::vector<std::string> terms{"static", "query", "query_gate", "key", "key_gate"};
  const std::vector<double> pre{0.577773, 0.662345, 0.535813, 0.766564, 0.589127};
  const std::vector<double> post{0.474696, 0.837081, 0.485916, 0.858894, 0.607848};
  for (size_t n = 0; n < terms.size(); ++n) {
    near("pre_" + terms[n] + "_term", {pre[n]});
    near("post_" + terms[n] + "_term", {post[n]});
  }
}

TEST_CASE("dcmha reports the statistics that it promises, of rows and heads that count",
          "[dcmha]") {
  torch::manual_seed(13);
  for (const auto& options : kDcmhaOptions) {
    INFO(options);
    auto heads = dcmha(options);
    heads->mask_heads({1});
    HeadProbe probe;
    probe.statistics = probe.maps = true;
    auto ctx = causal();
    ctx.observer = &probe;
    ctx.mask.key_length = ctx.mask.query_length = at::tensor({T, int64_t{5}});
    heads->forward(random({B, T, D}), ctx);
    const auto values = probe.values(1);
    const auto map = probe.layer_maps().at(1);
    for (const auto& statistic : heads->own_statistics()) {
      INFO(statistic.name);
      const auto& got = values.at(statistic.name);
      REQUIRE(std::ssize(got) == value_count(statistic.per, H));
      for (int64_t n = 0; n < std::ssize(got); ++n) {
        const bool gone = (statistic.per == Per::kHead && n == 1) ||
                          (statistic.per == Per::kPair && (n / H == 1 || n % H == 1));
        REQUIRE(std::isnan(got[n]) == gone);
      }
    }
    if (values.count("composed_mass")) {
      const auto mass = map[0].abs().sum() + map[1].narrow(1, 0, 5).abs().sum() -
                        map[0][1].abs().sum() - map[1][1].narrow(0, 0, 5).abs().sum();
      double sum = 0;
      for (int64_t h : {0, 2, 3}) sum += values.at("composed_mass")[h];
      REQUIRE(sum * (T + 5) == Approx(mass.item<double>()));
    } else {  // then the map is what the statistics of all kinds are of
      HeadSums want(H);
      MapContext context;
      context.query_length = ctx.mask.query_length;
      context.causal = true;
      add_patterns(want, map, context);
      const auto expected = head_values(want);
      for (const char* name : {"entropy", "prev_token", "participation_ratio"})
        for (int64_t h : {0, 2, 3})
          REQUIRE(values.at(name)[h] == Approx(expected.at(name)[h]).epsilon(1e-9));
    }
  }
}

TEST_CASE("statistics of a composition are those of what its parameters make of tokens",
          "[dcmha]") {
  torch::manual_seed(21);
  auto heads = dcmha(", static: true");
  heads->mask_heads({1});
  const auto x = random({B, T, D});
  HeadProbe probe;
  probe.statistics = true;
  auto ctx = causal();
  ctx.observer = &probe;
  ctx.mask.key_length = ctx.mask.query_length = at::tensor(kLengths);
  heads->forward(x, ctx);
  const auto values = probe.values(1);
  const auto alive = at::tensor(kAlive);
  const auto valid = valid_tokens();  // [B,T]
  // Of the alive heads, in their order.
  const auto require_heads = [&](const std::string& name, const Tensor& want) {
    INFO(name);
    for (int64_t n = 0; n < std::ssize(kAlive); ++n)
      REQUIRE(values.at(name)[kAlive[n]] == Approx(want[n].item<double>()));
  };
  const auto require_layer = [&](const std::string& name, const Tensor& want) {
    INFO(name);
    REQUIRE(values.at(name)[0] == Approx(want.item<double>()));
  };
  const auto of_valid = [&](const Tensor& t) {  // [B,T,..] -> [tokens,..]
    return t.index({valid});
  };

  std::vector<Tensor> mixings;  // of either side [B,T,T,h,h]
  for (const std::string side : {"pre", "post"}) {
    const int64_t first = side == "pre" ? 0 : 2;
    for (const std::string token : {"query", "key"}) {
      const auto branch = branch_of_tokens(*heads, x, first + (token == "key"));
      const auto name = fmt::format("{}_{}", side, token);
      const auto g = of_valid(branch.g).abs();
      require_heads(name + "_gate", g.mean(0));
      require_heads(name + "_gate_saturated", (g > 0.95).to(at::kDouble).mean(0));
      require_layer(name + "_w1_rms", of_valid(branch.w1).square().mean().sqrt());
      require_layer(name + "_w2_rms", of_valid(branch.w2).square().mean().sqrt());
    }
    const auto fixed = heads->named_parameters()["compose." + side].index_select(0, alive);
    const auto query = at::eye(3, at::kDouble) + fixed.index_select(1, alive) +
                       matrix_of(branch_of_tokens(*heads, x, first));  // [B,T,h,h]
    const auto mean = of_valid(query).mean(0);
    for (int64_t from = 0; from < 3; ++from)
      for (int64_t to = 0; to < 3; ++to)
        REQUIRE(values.at(side + "_query_matrix")[kAlive[from] * H + kAlive[to]] ==
                Approx(mean[from][to].item<double>()));
    require_layer(side + "_query_off_diagonal", (mean - mean.diag().diag()).norm() / mean.norm());
    mixings.push_back(query.unsqueeze(2) +
                      matrix_of(branch_of_tokens(*heads, x, first + 1)).unsqueeze(1));
  }

  const auto split = [&](const char* name) {
    return split_heads(at::linear(x, heads->named_parameters()[name]), H).index_select(1, alive);
  };
  const auto z = at::matmul(split("q.weight"), split("k.weight").transpose(2, 3)) / std::sqrt(6.);
  const auto mix = [](const Tensor& map, const Tensor& matrices) {
    return at::einsum("bmij,bijmn->bnij", {map, matrices});
  };
  auto mask = ctx.mask;
  const auto p = masked_softmax(mix(z, mixings[0]), allowed_keys(mask, T, T, at::kCPU));
  const auto a = mix(p, mixings[1]);
  auto entropy = at::zeros({3}, at::kDouble);
  for (int64_t b = 0; b < B; ++b)
    for (int64_t i = 0; i < kLengths[b]; ++i) {
      const auto row = a[b].select(1, i).abs();  // [h,T]
      const auto share = row / row.sum(1, true);
      entropy -= at::xlogy(share, share).sum(1) / (kLengths[0] + kLengths[1]);
    }
  require_heads("composed_entropy", entropy);
  for (const std::string name : {"softmax", "composed"}) {
    const auto& map = name == "softmax" ? p : a;
    const auto of_heads = of_valid(map.transpose(1, 2)).transpose(0, 1).flatten(1);  // [h,.]
    auto gram = of_heads.mm(of_heads.t());
    gram = gram / at::outer(gram.diag().sqrt(), gram.diag().sqrt());
    require_layer(name + "_cosine", (gram.sum() - 3) / 6);
    const auto l = at::linalg_eigvalsh(gram) / 3;
    require_layer(name + "_effective_rank", (-(l * l.log()).sum()).exp());
  }
}

TEST_CASE("statistics of a composition are of all batches together", "[dcmha]") {
  torch::manual_seed(22);
  auto heads = dcmha();
  HeadProbe probe, apart;
  probe.statistics = apart.statistics = true;
  std::vector<std::map<std::string, std::vector<double>>> of_each;
  for (double size : {0.1, 2.}) {
    const auto x = random({B, T, D}) * size;
    auto ctx = causal();
    ctx.observer = &probe;
    heads->forward(x, ctx);
    apart.reset();
    ctx.observer = &apart;
    heads->forward(x, ctx);
    of_each.push_back(apart.values(1));
  }
  const auto got = probe.values(1);
  for (const char* name : {"pre_query_w2_rms", "post_key_w1_rms"}) {
    const double a = of_each[0].at(name)[0], b = of_each[1].at(name)[0];
    REQUIRE(a != Approx(b));
    REQUIRE(got.at(name)[0] == Approx(std::sqrt((a * a + b * b) / 2)));
  }
  // The share of the mean, which is not the mean of the shares.
  double whole = 0, off = 0;
  for (int64_t n = 0; n < H * H; ++n) {
    const double mean =
        (of_each[0].at("pre_query_matrix")[n] + of_each[1].at("pre_query_matrix")[n]) / 2;
    whole += mean * mean;
    if (n / H != n % H) off += mean * mean;
  }
  REQUIRE(got.at("pre_query_off_diagonal")[0] == Approx(std::sqrt(off / whole)));
}

}  // namespace headlab::test_dcmha_statistics
