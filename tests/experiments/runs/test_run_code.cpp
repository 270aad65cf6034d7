// What a manifest says of the code that made a run, and what of it is another now.
#include "experiments/runs/run_code.h"
#include "tests/catch.h"
#include "tests/training_testing.h"

namespace headlab::test_run_code {
namespace {

using Catch::Contains;
using Json = nlohmann::ordered_json;

TEST_CASE("the code of kinds is known by the digests of their files, and of no others") {
  const Json code = code_json({"mha", "somebody's"});
  CHECK(code["kinds"]["mha"].get<std::string>().size() == 64);
  CHECK(code["kinds"]["somebody's"].is_null());
  CHECK(code["rest"].get<std::string>().size() == 64);
  CHECK(code_json({"moh"})["kinds"]["moh"] != code["kinds"]["mha"]);

  CHECK(kinds_that_differ(code_json({"mha", "moh"})).empty());
  CHECK_FALSE(rest_differs(code));
  const auto unknown = kinds_that_differ(code);
  REQUIRE(unknown.size() == 1);
  CHECK_THAT(unknown[0], Contains("somebody's") && Contains("not known"));
}

TEST_CASE("the code of a run is that of its kinds, of kinds within kinds and of maps by option") {
  const auto kinds_of = [](const std::string& attention) {
    const auto experiment = training_testing::experiment_of(
        "name: x\ndata: {kind: induction, symbols: 16, context: 16}\n"
        "model: {kind: decoder, layers: 2, d_model: 16, heads: 4, attention: " +
        attention + "}\n");
    const auto data = open_data(experiment.data);
    auto model = build_model(experiment, data->shape(), at::kCPU);
    const auto manifest = manifest_of(experiment, *model, {}, at::kCPU);
    std::string names;
    for (const auto& [name, digest] : manifest["code"]["kinds"].items())
      names += name + (digest.is_string() ? " " : "? ");
    return names;
  };
  CHECK(kinds_of("{kind: mha}") == "mha ");
  CHECK(kinds_of("{kind: softpick}") == "softpick ");
  CHECK(kinds_of("{kind: mha, map: {kind: sink, sink: 0.5}}") == "mha sink ");
  CHECK(kinds_of("{kind: gated, inner: {kind: mha, map: entmax}}") == "entmax gated mha ");
}

TEST_CASE("another source of a kind differs, another rest does not count among the kinds") {
  Json code = code_json({"mha", "moh"});
  code["rest"] = "0";
  CHECK(kinds_that_differ(code).empty());
  CHECK(rest_differs(code));
  code["kinds"]["moh"] = "0";
  const auto lines = kinds_that_differ(code);
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0], Contains("variants/moh"));
  for (const Json& none : {Json(), Json::object(), Json{{"kinds", nullptr}}}) {
    REQUIRE(kinds_that_differ(none).size() == 1);
    CHECK_THAT(kinds_that_differ(none)[0], Contains("no digest"));
    CHECK(rest_differs(none));
  }
}

TEST_CASE("the code of all that went into a run is judged, and each difference said once") {
  const Json same = code_json({"mha"});
  Json other = same;
  other["kinds"]["mha"] = "0";
  CHECK(code_notice({{"code", same}}).empty());
  CHECK(code_notice({{"code", same}, {"parent", {{"code", same}}}}).empty());
  const auto one = code_notice({{"code", other}});
  CHECK_THAT(one, Contains("variants/mha.cpp"));
  CHECK(code_notice({{"code", same}, {"previous", {{{"code", other}}}}}) == one);
  CHECK(code_notice({{"code", same}, {"parent", {{"code", other}}}}) == one);
  CHECK(code_notice(
            {{"code", other}, {"parent", {{"code", same}, {"parent", {{"code", other}}}}}}) == one);
  CHECK_THAT(code_notice(Json()), Contains("no digest"));
}

}  // namespace
}  // namespace headlab::test_run_code
