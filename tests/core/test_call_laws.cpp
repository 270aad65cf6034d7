// Laws that every registered kind of heads must obey when its caller takes the heads' outputs into
// its own hands, or says where each example's queries stand.
#include "tests/catch.h"
#include "tests/laws_testing.h"

namespace headlab::test_call_laws {
using namespace testing;

namespace {

// Options by which a layer puts its outputs together in other ways.
std::vector<std::string> options_of(const std::string& kind) {
  if (kind == "moh") return {"", ", compute: sparse", ", compute: dense"};
  if (kind == "gated") return {"", ", inner: {kind: moh, compute: sparse}"};
  return {""};
}

}  // namespace

TEST_CASE("what is given in the place of the heads' outputs is what the layer goes on with",
          "[laws]") {
  for (const auto& kind : head_names())
    for (const auto& options : options_of(kind)) {
      INFO(kind << options);
      const Subject s(kind, options_in_laws(kind) + options);
      const auto x = random({B, T, 20});
      const auto gates = at::tensor({1., 0., 1., 0.5}, at::kDouble).view({1, 4, 1});
      auto gated = s.natural(), replaced = s.natural(), kept = s.natural();
      gated.gates = gates;
      int64_t calls = 0;
      replaced.outputs = [&](const Tensor& o) {
        ++calls;
        REQUIRE(o.sizes() == at::IntArrayRef({B, 4, T, s.heads->value_width()}));
        return o * gates.unsqueeze(3);
      };
      kept.outputs = [](const Tensor& o) { return o; };
      REQUIRE(relative_difference(s.y(x, replaced), s.y(x, gated)) < 1e-12);
      REQUIRE(calls == 1);
      REQUIRE(relative_difference(s.y(x, kept), s.y(x, s.natural())) < 1e-12);
    }
}

TEST_CASE("each example may have positions of its own", "[laws]") {
  const Rotary rotary;
  for_every_kind([&](const Subject& s) {
    const auto x = random({B, T, 20});
    const auto from_0 = at::arange(T, at::kLong);
    const auto rows = at::stack({from_0, from_0 * 2 + 3});  // [B,T]
    auto ctx = s.natural();
    if (s.traits.rotary) ctx.rotary = &rotary;
    ctx.positions = rows;
    const auto together = s.y(x, ctx);
    for (int64_t b = 0; b < B; ++b) {
      ctx.positions = rows[b];
      const auto alone = s.y(x.narrow(0, b, 1), ctx);
      REQUIRE(relative_difference(together.narrow(0, b, 1), alone) < 1e-10);
    }
    ctx.positions = from_0.narrow(0, 0, T - 1);
    REQUIRE_THROWS_WITH(s.y(x, ctx), Catch::Contains("positions must be"));
  });
}

}  // namespace headlab::test_call_laws
