// The paths of attend(): each gives the numbers of the one that holds the map, or says why not.
#include <array>
#include <cmath>
#include <limits>

#include "core/attention/paths/paths.h"
#include "tests/catch.h"
#include "tests/heads_testing.h"

namespace headlab::test_attend {
using namespace testing;

namespace {

constexpr int64_t B = 2, H = 4, Hkv = 2, T = 70, S = 73, d = 6, e = 5;

struct Numbers {
  std::vector<Tensor> of;  // outputs, then gradients
};

struct Case {
  std::string name;
  HeadContext ctx;
  std::shared_ptr<PositionBias> bias = nullptr;
};

std::vector<Case> cases(const Tensor& table) {
  std::vector<Case> all(7);
  all[0].name = "all keys";
  all[1].name = "causal", all[1].ctx.mask.causal = true;
  all[2].name = "causal window", all[2].ctx = causal(9);
  all[3].name = "window", all[3].ctx.mask.window = 9;
  all[4].name = "lengths", all[4].ctx = causal();
  all[4].ctx.mask.key_length = at::tensor({S, int64_t{31}});
  all[5].name = "alibi", all[5].ctx = causal();
  all[5].bias = std::make_shared<Alibi>(H, at::kDouble);
  all[6].name = "relative", all[6].ctx = causal(20);
  all[6].bias = std::make_shared<RelativeBias>(table, 32, true);
  for (auto& c : all) c.ctx.position_bias = c.bias.get();
  return all;
}

Numbers numbers(const Case& c, Backend backend, bool with_lse, Tensor table) {
  torch::manual_seed(5);
  std::vector<Tensor> inputs{random({B, H, T, d}), random({B, Hkv, S, d}), random({B, Hkv, S, e})};
  const auto of_out = random({B, H, T, e}), of_lse = random({B, H, T});
  for (auto& t : inputs) t.requires_grad_();
  auto ctx = c.ctx;
  ctx.backend = backend;
  const auto call = HeadCall::from_context(ctx);
  AttendedRows rows;
  if (with_lse)
    rows = attend_lse(inputs[0], inputs[1], inputs[2], call, 0.4);
  else
    rows.out = attend(inputs[0], inputs[1], inputs[2], call, 0.4);
  auto loss = (rows.out * of_out).sum();
  if (with_lse) loss = loss + (rows.lse * of_lse).sum();
  table.mutable_grad() = Tensor();
  loss.backward();
  Numbers all{{rows.out}};
  if (with_lse) all.of.push_back(rows.lse);
  for (const auto& t : inputs) all.of.push_back(t.grad());
  if (table.grad().defined()) all.of.push_back(table.grad().clone());
  return all;
}

}  // namespace

TEST_CASE("every path of attention gives the numbers of the one that holds the map", "[attend]") {
  REQUIRE(attend_path_names() == std::vector<std::string>{"flash", "sdpa", "rows", "eager"});
  torch::manual_seed(1);
  const auto table = random({16, H}).requires_grad_();
  for (const auto& c : cases(table))
    for (const bool with_lse : {false, true}) {
      const auto want = numbers(c, Backend::kEager, with_lse, table);
      for (const auto& name : attend_path_names()) {
        if (name == "sdpa" && c.bias) continue;
        INFO(c.name << " by " << name << (with_lse ? " with lse" : ""));
        if (name == "rows" && c.name == "relative") {
          REQUIRE_THROWS_WITH(numbers(c, backend_named(name), with_lse, table),
                              Catch::Contains("backend rows: not with uniform heads"));
          continue;
        }
        if ((name == "sdpa" || name == "rows") && with_lse) {
          REQUIRE_THROWS_WITH(numbers(c, backend_named(name), with_lse, table),
                              Catch::Contains("backend " + name + ": gives no log-sum-exp"));
          continue;
        }
        const auto got = numbers(c, backend_named(name), with_lse, table);
        REQUIRE(got.of.size() == want.of.size());
        const double close = name == "rows" ? 2e-7 : 1e-12;  // its exponentials are single
        for (size_t n = 0; n < want.of.size(); ++n)
          REQUIRE(relative_difference(got.of[n], want.of[n]) < close);
      }
      const auto chosen = numbers(c, Backend::kAuto, with_lse, table);
      for (size_t n = 0; n < want.of.size(); ++n)
        REQUIRE(relative_difference(chosen.of[n], want.of[n]) < 1e-12);
    }
}

TEST_CASE("keys stay hidden on every path where the scale is 0 or less", "[attend]") {
  torch::manual_seed(3);
  const auto q = random({B, H, 9, d}), k = random({B, Hkv, 9, d}), v = random({B, Hkv, 9, e});
  for (const double scale : {-0.4, 0.0}) {
    auto ctx = causal();
    ctx.backend = Backend::kEager;
    const auto want = attend(q, k, v, HeadCall::from_context(ctx), scale);
    for (const auto& name : attend_path_names()) {
      INFO(name << ", scale " << scale);
      ctx.backend = backend_named(name);
      CHECK(difference(attend(q, k, v, HeadCall::from_context(ctx), scale), want) < 1e-12);
    }
  }
}

TEST_CASE("scores that are no numbers make rows of NaN on every path", "[attend]") {
  torch::manual_seed(1);
  const auto table = random({16, H});
  for (const auto& c : cases(table))
    for (const auto type : {at::kDouble, at::kFloat})
      for (const double lost : {std::nan(""), std::numeric_limits<double>::infinity()})
        for (const auto& name : attend_path_names()) {
          if (name == "sdpa" && c.bias) continue;
          INFO(c.name << " by " << name << ", " << lost);
          const auto draw = [&](int64_t heads, int64_t n, int64_t width) {
            return at::randn({B, heads, n, width}, type);
          };
          const auto q = draw(H, T, d), k = draw(Hkv, S, d), v = draw(Hkv, S, e);
          q.select(2, 40).fill_(lost);
          k.select(2, 68).fill_(lost);
          auto ctx = c.ctx;
          const auto rows_of = [&](Backend backend) {
            ctx.backend = backend;
            return attend(q, k, v, HeadCall::from_context(ctx), 0.4);
          };
          const auto want = rows_of(Backend::kEager), got = rows_of(backend_named(name));
          CHECK(want.isnan().any().item<bool>());
          // torch's kernels may find a key in rows that it is hidden from.
          CHECK((got.isnan() | want.isnan().logical_not()).all().item<bool>());
          const auto both = at::where(got.isnan(), got, want).nan_to_num();
          CHECK(relative_difference(got.nan_to_num(), both) < 1e-4);
        }
}

TEST_CASE("a path that does not serve a call says so", "[attend]") {
  const auto q = random({1, 2, 3, 4}), k = random({1, 2, 3, 4});
  const auto with = [&](auto change) {
    HeadContext ctx;
    change(ctx);
    return [=] { attend(q, k, k, HeadCall::from_context(ctx), 1); };
  };
  const Alibi alibi(2, at::kDouble);
  REQUIRE_THROWS_WITH(
      with([&](HeadContext& c) { c.backend = Backend::kSdpa, c.position_bias = &alibi; })(),
      Catch::Contains("backend sdpa: not with dropout, a bias by distance"));
  REQUIRE_THROWS_WITH(with([&](HeadContext& c) {
                        c.backend = Backend::kFlash, c.bias = random({1, 2, 3, 3});
                      })(),
                      Catch::Contains("backend flash: not with dropout, a dense mask or bias"));
  REQUIRE_THROWS_WITH(backend_named("none"),
                      Catch::Contains("no path of attention is called 'none'"));
}

TEST_CASE("rows without any key have no log-sum-exp and no gradient on every path", "[attend]") {
  for (const Backend backend : {Backend::kEager, Backend::kFlash}) {
    auto q = random({2, 2, 3, 4}).requires_grad_();
    const auto k = random({2, 2, 3, 4});
    HeadContext ctx;
    ctx.backend = backend;
    ctx.mask.key_length = at::tensor({int64_t{3}, int64_t{0}});
    const auto rows = attend_lse(q, k, k, HeadCall::from_context(ctx), 1);
    REQUIRE(rows.out[1].abs().sum().item<double>() == 0);
    REQUIRE((rows.lse[1] == kHiddenScore).all().item<bool>());
    (rows.out.sum() + rows.lse[0].sum()).backward();
    REQUIRE(q.grad().isfinite().all().item<bool>());
    REQUIRE(q.grad()[1].abs().sum().item<double>() == 0);
  }
}

TEST_CASE("the mask of a call says what the caller's did: which way it reads, and how far",
          "[attend]") {
  HeadContext ctx = causal(9);
  ctx.mask.key_length = at::tensor({S, int64_t{31}}), ctx.mask.query_length = ctx.mask.key_length;
  const auto q = random({B, H, S, d}), k = random({B, Hkv, S, d});
  const auto mask = AttentionCall(q, k, k, HeadCall::from_context(ctx), 1).mask();
  CHECK(mask.causal);
  CHECK(mask.key_length.equal(ctx.mask.key_length));
  CHECK(mask.query_length.equal(ctx.mask.query_length));
  CHECK(allowed_keys(mask, S, S, at::kCPU).equal(allowed_keys(ctx.mask, S, S, at::kCPU)));
}

TEST_CASE("a bias of -infinity hides on every path", "[attend]") {
  torch::manual_seed(2);
  const auto drawn = random({B, H, T, S});
  auto hidden = at::rand({B, H, T, S}) < 0.3;
  hidden.select(2, 5).fill_(true);  // rows without any key
  hidden.narrow(0, 1, 1).select(2, 40).fill_(true);
  const auto with = [&](Backend backend, bool by_mask) {
    torch::manual_seed(3);
    std::vector<Tensor> inputs{random({B, H, T, d}), random({B, Hkv, S, d}),
                               random({B, Hkv, S, e})};
    for (auto& t : inputs) t.requires_grad_();
    HeadContext ctx = causal();
    ctx.backend = backend;
    ctx.bias = by_mask ? drawn : drawn.masked_fill(hidden, kHiddenScore);
    if (by_mask) ctx.mask.allowed = hidden.logical_not();
    const auto out = attend(inputs[0], inputs[1], inputs[2], HeadCall::from_context(ctx), 0.4);
    out.square().sum().backward();
    std::vector<Tensor> all{out};
    for (const auto& t : inputs) all.push_back(t.grad());
    return all;
  };
  const auto want = with(Backend::kEager, /*by_mask=*/true);
  CHECK(want[0].select(2, 5).abs().max().item<double>() == 0);
  for (const auto backend : {Backend::kAuto, Backend::kEager, Backend::kSdpa, Backend::kRows}) {
    INFO("backend " << static_cast<int>(backend));
    const auto got = with(backend, /*by_mask=*/false);
    for (size_t n = 0; n < want.size(); ++n)
      CHECK(relative_difference(got[n], want[n]) < (backend == Backend::kRows ? 2e-7 : 1e-12));
  }
}

}  // namespace headlab::test_attend
