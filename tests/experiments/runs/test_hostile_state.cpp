// The JSON files of a run as a stranger may have left them.
#include <nlohmann/json.hpp>

#include "core/errors.h"
#include "experiments/runs/checkpoint_state.h"
#include "experiments/runs/known_runs.h"
#include "experiments/runs/run_code.h"
#include "experiments/runs/run_data.h"
#include "experiments/runs/run_files.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/runs/same_run.h"
#include "experiments/training/training_state.h"
#include "tests/catch.h"
#include "tests/scratch.h"

namespace headlab::test_hostile_state {
namespace {

using Json = nlohmann::ordered_json;

// The value with each of its parts, in turn, made each of `others`.
std::vector<Json> mutations(const Json& whole, const std::vector<Json>& others) {
  std::vector<Json> made;
  for (const auto& other : others) made.push_back(other);
  if (!whole.is_structured()) return made;
  for (const auto& [key, part] : whole.items())
    for (const auto& mutated : mutations(part, others)) {
      made.push_back(whole);
      if (whole.is_array())
        made.back()[std::stoul(key)] = mutated;
      else
        made.back()[key] = mutated;
    }
  return made;
}

const std::vector<Json> kOthers{
    nullptr,          true,          -7, 1e300, "text", Json::array(), Json::object(),
    Json::array({7}), Json{{"a", 7}}};

}  // namespace

TEST_CASE("no manifest makes a run fail but by its own errors") {
  const Scratch scratch;
  RunDirectory::create(scratch / "run", "name: a\n", Json::object());
  auto session = make_manifest({.torch = "2", .gpus = {"a"}, .threads = 2, .seed = 3});
  session["data"] = {{{"path", "/x"}, {"bytes", 3}, {"modified_ns", 4}, {"sha256", "0"}}};
  session["code"] = code_json({"mha"});
  auto manifest = session;
  manifest["run_id"] = "id";
  manifest["previous"] = {session};
  manifest["parent"] = session;
  manifest["parent"]["run"] = "/parent";
  size_t sound = 0;
  for (const auto& mutated : mutations(manifest, kOthers)) {
    INFO(mutated.dump());
    write_bytes(scratch / "run/manifest.json", mutated.dump());
    const auto read = read_manifest(scratch / "run");
    sound += read.is_object();
    try {
      continue_manifest(scratch / "run", read, session);
    } catch (const RunError&) {
    }
    CHECK_NOTHROW(code_since(scratch / "run"));
    CHECK_NOTHROW(kept_data(scratch / "run"));
  }
  CHECK(sound > 100);
}

TEST_CASE("no status makes a run fail") {
  const Scratch scratch;
  RunDirectory::create(scratch / "run", "name: a\n", Json::object());
  const Json status{{"status", "finished"},
                    {"reason", ""},
                    {"step", 3},
                    {"metrics", {{"val/loss", 1.5}, {"val/x", "NaN"}}}};
  for (const auto& mutated : mutations(status, kOthers)) {
    INFO(mutated.dump());
    write_bytes(scratch / "run/status.json", mutated.dump());
    CHECK_NOTHROW(find_run(scratch / "run"));
  }
  auto wrong = status;
  wrong["step"] = 1e300;
  write_bytes(scratch / "run/status.json", wrong.dump());
  CHECK_FALSE(read_status(scratch / "run"));
}

TEST_CASE("no state of a checkpoint, sealed as it should be, is read but by its own errors") {
  const Scratch scratch;
  const Json state{
      {"schema_version", kStateVersion}, {"step", 3}, {"best", true}, {"trainer", {{"tokens", 9}}}};
  for (const auto& mutated : mutations(state, kOthers)) {
    if (!mutated.is_object() || mutated.empty()) continue;  // nothing that has a seal
    INFO(mutated.dump());
    write_bytes(scratch / kStateFile, sealed_state(mutated));
    try {
      read_state(scratch.path()).value("best", false);
    } catch (const DataError& error) {
      CHECK_THAT(error.what(), Catch::Matchers::StartsWith((scratch / kStateFile).string()));
    }
  }
}

TEST_CASE("what the trainer left in a checkpoint is read, or the run's error") {
  TrainingState state{.tokens = 9, .wall_s = 2, .best = 1.5, .newest = {{"val/loss", 1.5}}};
  const Json trainer = state.json();
  for (const auto& mutated : mutations(trainer, kOthers)) {
    INFO(mutated.dump());
    try {
      TrainingState::of({.step = 3, .trainer = mutated});
    } catch (const RunError& error) {
      CHECK_THAT(error.what(), Catch::Matchers::StartsWith("the checkpoint of step 3: "));
    }
  }
  auto wrong = trainer;
  wrong["tokens"] = 1e300;
  CHECK_THROWS_AS(TrainingState::of({.step = 3, .trainer = wrong}), RunError);
  CHECK(TrainingState::of({.step = 3, .trainer = trainer}).json() == state.json());
}

TEST_CASE("what a run says of its data is read, or the run's error") {
  const Scratch scratch;
  const Json data{{"shape",
                   {{"vocabulary", 2},
                    {"context", 4},
                    {"source_vocabulary", 0},
                    {"source_context", 0},
                    {"classes", 0},
                    {"channels", 0},
                    {"height", 0},
                    {"width", 0},
                    {"pad", 1}}},
                  {"token_texts", {"a", "b"}},
                  {"token_classes", {0, 1}},
                  {"ends", {1}}};
  const auto path = scratch / "data.json";
  for (const auto& mutated : mutations(data, kOthers)) {
    INFO(mutated.dump());
    write_bytes(path, mutated.dump());
    try {
      const auto read = read_data_text(scratch.path()).value();
      CHECK(read.shape.pad.value_or(0) < read.shape.vocabulary);
    } catch (const RunError& error) {
      CHECK_THAT(error.what(), Catch::Matchers::StartsWith(path.string()));
    }
  }
  for (const char* place : {"/shape/pad", "/ends/0", "/token_classes/0"}) {
    auto wrong = data;
    wrong[Json::json_pointer(place)] = 1e300;
    write_bytes(path, wrong.dump());
    CHECK_THROWS_AS(read_data_text(scratch.path()), RunError);
  }
}

}  // namespace headlab::test_hostile_state
