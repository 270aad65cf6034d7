// Every integer of a config has bounds, and none within them overflows or takes memory that is not
// there: a config is served or refused, by the program as by this test.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/config/config_fields.h"
#include "core/errors.h"
#include "core/torch.h"
#include "experiments/files/config_file.h"
#include "experiments/files/config_schema.h"
#include "experiments/runs/bounded_tensors.h"
#include "experiments/runs/experiment.h"
#include "experiments/runs/open_run.h"
#include "experiments/runs/run_data.h"
#include "experiments/system/memory.h"
#include "tests/catch.h"
#include "tests/scratch.h"

namespace headlab::test_bounds {
namespace {

using Json = nlohmann::json;

// The schemas below that take an integer.
void add_integers(const Json& schema, std::vector<Json>& found) {
  if (schema.is_object() && schema.value("type", Json()) == "integer") found.push_back(schema);
  if (schema.is_structured())
    for (const auto& below : schema) add_integers(below, found);
}

// Small, so that what one setting does is not what another did.
constexpr const char* kLeast =
    "name: bounds\n"
    "data: {kind: induction}\n"
    "model: {layers: 1, d_model: 8, heads: 2, head_dim: 4}\n"
    "train: {steps: 1, batch: 2}\n"
    "log: {attention: {every: 0}}\n";

// "" where a model can be made of these settings, else what is said; anything but the errors of
// settings, data and devices is thrown on.
std::string refusal(const std::vector<std::string>& settings) {
  static const auto file = [] {
    static const Scratch scratch;
    std::ofstream(scratch / "bounds.yaml") << kLeast;
    return scratch / "bounds.yaml";
  }();
  try {
    Experiment experiment;
    read_config(experiment, load_config(file, settings));
    const auto data = open_training_data(experiment);
    build_trained_model(experiment, data->shape(), at::kCPU);
  } catch (const ConfigError& error) {
    return error.what();
  } catch (const DataError& error) {
    return error.what();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "";
}

std::string above(const std::string& path) { return path.substr(0, path.rfind('.')); }

TEST_CASE("every integer of a config has a smallest and a largest value") {
  Experiment experiment;
  std::vector<Json> found;
  add_integers(Json::parse(schema_of(experiment)), found);
  CHECK(found.size() > 150);
  for (const auto& schema : found) {
    INFO(schema.dump());
    CHECK((schema.contains("minimum") || schema.contains("exclusiveMinimum")));
    CHECK((schema.contains("maximum") || schema.contains("exclusiveMaximum")));
  }
}

TEST_CASE("no value of any key crashes, overflows or takes memory that is not there") {
  bound_tensors();
  Experiment experiment;
  for (const auto& key : key_paths(experiment)) {
    auto kinds = key.kinds;
    if (kinds.empty()) kinds.emplace_back();
    for (const auto& kind : kinds)
      for (const char* value : {"2147483647", "9223372036854775807", "[2147483647, 1]"}) {
        // What no integer may be, and what is none, the reader refuses whatever the kind is.
        if (kind != kinds.front() && value != std::string("2147483647")) continue;
        std::vector<std::string> settings;
        if (!kind.empty()) settings.push_back(above(key.path) + ".kind=" + kind);
        settings.push_back(key.path + "=" + value);
        INFO(fmt::format("{}", fmt::join(settings, " ")));
        CHECK_NOTHROW(refusal(settings));
      }
  }
}

TEST_CASE("what is too large is refused by what it would take") {
  bound_tensors();
  CHECK_THAT(refusal({"model.heads=9223372036854775807"}),
             Catch::Contains("model.heads: must be in [1, 2147483647]"));
  CHECK_THAT(refusal({"model.d_ff=2147483647"}),
             Catch::Contains("out of memory: a tensor would take 64 GiB"));
  // Every layer of it would fit.
  CHECK_THAT(refusal({"model.layers=4096", "model.d_ff=1000000"}),
             Catch::Contains("out of memory: the weights of 4096 layers would take"));
  CHECK(refusal({}).empty());
}

TEST_CASE("what takes all memory that there is, and more, is refused by its name") {
  const double available = available_memory();
  REQUIRE(available > 0);
  CHECK_NOTHROW(require_memory(available / 2, "half"));
  CHECK_THROWS_WITH(require_memory(2 * available, "the double"),
                    Catch::Contains("out of memory: the double would take"));
}

}  // namespace
}  // namespace headlab::test_bounds
