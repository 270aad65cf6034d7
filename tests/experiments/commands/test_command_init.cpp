// `init: RUN`: a training that begins with another run's weights.
#include "tests/command_testing.h"

namespace headlab::testing::test_command_init {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

std::string weights(const fs::path& run, const std::string& step) {
  return read_bytes(run / "ckpt" / step / "model.safetensors");
}

// One step of so small a rate that the weights stay where they are to the eye.
const Arguments kShort{"train.steps=1", "train.lr=1e-12", "train.weight_decay=0"};

fs::path begin_with(const Bench& bench, const std::string& words) {
  Arguments overrides = kShort;
  overrides.insert(overrides.end(), {"--init", words});
  return bench.train(overrides);
}

TEST_CASE("init begins with the weights of a run, all else is new, and the parent is kept") {
  const Bench bench;
  const fs::path parent = bench.train();
  const fs::path child = begin_with(bench, "@");
  CHECK(child != parent);
  const Json manifest = json_of(child / "manifest.json");
  CHECK(manifest.at("parent").at("run") == parent.string());
  CHECK(manifest.at("parent").at("step") == 5);
  CHECK(manifest.at("parent").at("code") == json_of(parent / "manifest.json").at("code"));
  CHECK(manifest.at("data").back().at("path") ==
        (parent / "ckpt/step-00000005/model.safetensors").string());
  CHECK_THAT(read_bytes(child / "config.yaml"), Contains("init: " + parent.string()));
  CHECK(json_of(child / "status.json").at("step") == 1);
  const auto loss = [&](const fs::path& run) {
    return Json::parse(bench.headlab({"eval", run.string(), "--json"}).out)
        .at("loss")
        .get<double>();
  };
  CHECK(loss(child) == Approx(loss(parent)).epsilon(1e-5));
  CHECK(loss(child) != Approx(loss(bench.train(kShort))).epsilon(1e-3));
  // The same command finds it, though another run is the newest by now.
  CHECK(begin_with(bench, parent.string()) == child);
}

TEST_CASE("init takes the checkpoint that is named") {
  const Bench bench;
  const fs::path parent = bench.train();
  const fs::path child = begin_with(bench, (parent / "ckpt/step-00000004").string());
  CHECK(json_of(child / "manifest.json").at("parent").at("step") == 4);
}

TEST_CASE("a sliced run's weights bring its heads along, and a stopped run goes on") {
  const Bench bench;
  const fs::path parent = bench.train();
  REQUIRE(bench.headlab({"prune", parent.string(), "--heads", "0:1", "--slice", "--out", "half"})
              .code == 0);
  const Arguments stopped{"run", "tiny.yaml", "init=half", "train.max_time=1e-9"};
  const Outcome first = bench.headlab(stopped);
  REQUIRE(first.code == 75);
  CHECK_THAT(first.err, Contains("begins with the weights of " + (bench / "half").string()) &&
                            Contains("stopped at step 1; the same command goes on"));
  const Outcome second = bench.headlab(stopped);
  REQUIRE(second.code == 75);
  CHECK_THAT(second.err, Contains("goes on from step 1"));
  const fs::path run = lines_of(first.out).at(0);
  CHECK(json_of(run / "status.json").at("step") == 2);
  CHECK_THAT(weights(run, "step-00000002"), Contains("head_ids"));
}

TEST_CASE("weights to begin with count by their contents, as data do") {
  const Bench bench;
  const fs::path parent = bench.train();
  const fs::path child = begin_with(bench, parent.string());
  fs::copy(parent, bench / "moved", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  CHECK(begin_with(bench, (bench / "moved").string()) == child);
  CHECK(begin_with(bench, (parent / "ckpt/last").string()) == child);
  const fs::path other = bench.train({"seed=8"});
  fs::remove_all(parent);
  fs::rename(other, parent);
  Arguments again{"run", "tiny.yaml", "init=" + parent.string()};
  again.insert(again.end(), kShort.begin(), kShort.end());
  const Outcome outcome = bench.headlab(again);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, Contains("model.safetensors was another"));
  CHECK(lines_of(outcome.out).at(0) != child);
}

TEST_CASE("an init that cannot be is refused in one line, and nothing is made") {
  const Bench bench;
  const fs::path parent = bench.train();
  const auto refused = [&](const Arguments& more, int code, const std::vector<std::string>& words) {
    const auto before = snapshot(bench.path());
    Arguments arguments{"run", "tiny.yaml"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    check_refusal(bench.headlab(arguments), code, words);
    CHECK((snapshot(bench.path()) == before));
  };
  refused({"--init", "nowhere"}, 4, {"init: ", "nowhere", "not a run"});
  refused({"--init", "@2"}, 4, {"init: @2", "only 1 run"});
  refused({"--init", (parent / "ckpt/step-00000003").string()}, 4, {"init: ", "step-00000003"});
  const Outcome wide = bench.headlab({"run", "tiny.yaml", "--init", "@", "model.d_model=32"});
  CHECK(wide.code == 2);
  CHECK_THAT(wide.err,
             Contains("init: " + parent.string() + " at step 5: ") &&
                 Contains("embed.token.weight: is Float [30, 16], should be Float [30, 32]") &&
                 Contains("blocks.0.mlp.up.weight"));
  CHECK(only_entry(bench / "runs/tiny") == parent);
  write_bytes(bench / "text.txt", replaced(read_bytes(bench / "text.txt"), "quick", "q#ick"));
  refused({"--init", parent.string(), "tag=other"}, 2, {"init: ", "token"});
}

TEST_CASE("an init of the run itself, or of what was made from it, is refused") {
  const Bench bench;
  const fs::path parent = bench.train();
  const fs::path child = begin_with(bench, parent.string());
  // As if the child's place were where its parent lay: a circle.
  Json manifest = json_of(parent / "manifest.json");
  manifest["parent"] = {{"run", child.string()}, {"step", 1}};
  write_bytes(parent / "manifest.json", manifest.dump());
  Arguments again{"run", "tiny.yaml", "--init", parent.string()};
  again.insert(again.end(), kShort.begin(), kShort.end());
  check_refusal(bench.headlab(again), 2, {"init: ", "made from it"});
}

}  // namespace
}  // namespace headlab::testing::test_command_init
