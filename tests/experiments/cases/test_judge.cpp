// The tolerance of case files.
#include <ATen/ATen.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "experiments/cases/judge.h"
#include "tests/catch.h"

namespace headlab::test_judge {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

at::Tensor doubles(std::vector<double> values) { return at::tensor(values, at::kDouble); }

TEST_CASE("a tensor passes up to atol + rtol * max |want| and fails beyond") {
  const at::Tensor want = doubles({1, -8, 2});
  const Tolerance tolerance{.rtol = 0.25, .atol = 1};  // bound 3
  const Verdict at_bound = judge("out.y", doubles({1, -8, 5}), want, tolerance);
  CHECK(at_bound.pass);
  CHECK(at_bound.error == 3);
  CHECK(at_bound.bound == 3);
  const Verdict beyond = judge("out.y", doubles({1, -11.5, 2}), want, tolerance);
  CHECK_FALSE(beyond.pass);
  CHECK(beyond.error == 3.5);
}

TEST_CASE("NaN equals NaN and nothing else") {
  const Tolerance tolerance{.rtol = 1, .atol = 1};
  CHECK(judge("a", doubles({kNan, 1}), doubles({kNan, 1}), tolerance).pass);
  CHECK(judge("a", doubles({kNan, 1}), doubles({kNan, 1}), tolerance).error == 0);
  CHECK_FALSE(judge("a", doubles({kNan, 1}), doubles({0, 1}), tolerance).pass);
  CHECK_FALSE(judge("a", doubles({0, 1}), doubles({kNan, 1}), tolerance).pass);
}

TEST_CASE("an infinity equals itself and does not widen the bound of the others") {
  const Tolerance tolerance{.rtol = 0.5, .atol = 0};
  const at::Tensor want = doubles({-kInf, 2});
  CHECK(judge("a", doubles({-kInf, 2.5}), want, tolerance).pass);
  CHECK(judge("a", want, want, tolerance).bound == 1);
  CHECK_FALSE(judge("a", doubles({-kInf, 4}), want, tolerance).pass);
  CHECK_FALSE(judge("a", doubles({kInf, 2}), want, tolerance).pass);
  CHECK_FALSE(judge("a", doubles({-1e300, 2}), want, tolerance).pass);
}

TEST_CASE("another shape fails even where it broadcasts, and a missing tensor fails") {
  const Tolerance loose{.rtol = 1, .atol = 1e9};
  const Verdict shape = judge("a", at::ones({1, 3}), at::ones({2, 3}), loose);
  CHECK_FALSE(shape.pass);
  CHECK(shape.error == kInf);
  CHECK_THAT(verdict_line(shape), Catch::Matchers::EndsWith("FAIL (got shape [1,3])"));
  const Verdict missing = judge("a", at::Tensor(), at::ones({2}), loose);
  CHECK_FALSE(missing.pass);
  CHECK_THAT(verdict_line(missing), Catch::Matchers::EndsWith("FAIL (missing)"));
}

TEST_CASE("dtypes may differ, empty tensors and scalars are judged") {
  const Tolerance exact{};
  CHECK(judge("a", at::ones({2}, at::kBool), at::ones({2}, at::kLong), exact).pass);
  CHECK_FALSE(judge("a", at::zeros({2}, at::kBool), at::ones({2}, at::kLong), exact).pass);
  CHECK(judge("a", at::empty({0, 3}), at::empty({0, 3}), exact).pass);
  CHECK(judge("a", at::scalar_tensor(2), at::scalar_tensor(2), exact).pass);
  CHECK_FALSE(judge("a", at::scalar_tensor(2), at::scalar_tensor(3), exact).pass);
}

TEST_CASE("what was chosen is compared exactly, whatever the tolerance") {
  const auto chosen = at::tensor({0, 1, 1, 0}, at::kByte),
             other = at::tensor({0, 1, 0, 1}, at::kByte);
  const Tolerance wide{.rtol = 1, .atol = 1};
  CHECK(judge("out.blocks", chosen, chosen, wide).pass);
  CHECK_FALSE(judge("out.blocks", other, chosen, wide).pass);
  CHECK(judge("out.y", other.to(at::kFloat), chosen.to(at::kFloat), wide).pass);
}

TEST_CASE("each expected tensor is judged once, what was not expected is ignored") {
  const NamedTensors want = {{"grad.x", at::ones({2})}, {"out.y", at::ones({2})}};
  const NamedTensors got = {{"out.y", at::ones({2})}, {"out.gates", at::ones({5})}};
  const std::vector<Verdict> verdicts = judge(got, want, {});
  REQUIRE(verdicts.size() == 2);
  CHECK(verdicts[0].name == "grad.x");
  CHECK_FALSE(verdicts[0].pass);
  CHECK(verdicts[1].pass);
  CHECK_FALSE(all_pass(verdicts));
  CHECK(all_pass({}));  // a case without expected tensors passes
}

TEST_CASE("a verdict's line names tensor, shape, error, bound and outcome") {
  const Verdict verdict =
      judge("out.y", at::full({2, 3}, 1.5), at::ones({2, 3}), {.rtol = 0, .atol = 1});
  CHECK(verdict_line(verdict) ==
        "out.y                        [2,3]            error 0.5       bound 1         pass");
}

TEST_CASE("the JSON of verdicts holds what `layer --json` promises, an infinite error as null") {
  const NamedTensors want = {{"a", doubles({1})}, {"b", doubles({1})}};
  const auto json =
      verdicts_json("x.safetensors", judge({{"a", doubles({1.5})}}, want, {.rtol = 0, .atol = 1}));
  CHECK(json.dump() == R"({"case":"x.safetensors","pass":false,"tensors":[)"
                       R"({"name":"a","error":0.5,"bound":1.0,"pass":true},)"
                       R"({"name":"b","error":null,"bound":1.0,"pass":false}]})");
}

}  // namespace
}  // namespace headlab::test_judge
