// A run directory is one config, one data, one code of its kinds: what differs is never passed
// over.
#include <cstdlib>
#include <functional>

#include "tests/command_testing.h"

namespace headlab::testing::test_command_same_run {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

// As if another program had made the run.
void edit_manifest(const fs::path& run, const std::function<void(Json&)>& edit) {
  Json manifest = json_of(run / "manifest.json");
  edit(manifest);
  write_bytes(run / "manifest.json", manifest.dump(2));
}
void of_another_kind(Json& manifest) { manifest["code"]["kinds"]["mha"] = "0"; }

// A run of tiny.yaml that its time stopped after the first step.
fs::path interrupted(const Bench& bench) {
  const Outcome outcome = bench.headlab({"run", "tiny.yaml", "train.max_time=1e-9"});
  REQUIRE(outcome.code == 75);
  return only_entry(bench / "runs/tiny");
}
const Arguments kAgain{"run", "tiny.yaml", "train.max_time=1e-9"};

void check_that_it_is_refused(const Bench& bench, const Arguments& arguments,
                              const std::vector<std::string>& words) {
  const auto files = snapshot(bench.path());
  const Outcome outcome = bench.headlab(arguments);
  std::vector<std::string> all{"tag=", "--resume never"};
  all.insert(all.end(), words.begin(), words.end());
  check_refusal(outcome, 4, all);
  CHECK((snapshot(bench.path()) == files));
}

TEST_CASE(
    "a finished run of another source of its kind is no answer, with its tag it trains beside") {
  const Bench bench;
  const fs::path run = bench.train();
  edit_manifest(run, of_another_kind);
  check_that_it_is_refused(bench, {"run", "tiny.yaml"}, {"variants/mha.cpp"});
  const fs::path beside = bench.train({"tag=second"});
  CHECK(beside != run);
  CHECK(beside.parent_path() == run.parent_path());
  CHECK_THAT(read_bytes(beside / "config.yaml"), Contains("tag: second"));
  CHECK(bench.headlab({"run", "tiny.yaml", "--resume", "never"}).code == 0);
  CHECK(bench.headlab({"run", "tiny.yaml"}).code == 0);
}

TEST_CASE("an interrupted run of another source goes on where it is named, and keeps what it was") {
  const Bench bench;
  const fs::path run = interrupted(bench);
  edit_manifest(run, of_another_kind);
  check_that_it_is_refused(bench, kAgain, {"variants/mha.cpp"});
  Arguments named = kAgain;
  named.insert(named.end(), {"--resume", run.string()});
  const Outcome outcome = bench.headlab(named);
  CHECK(outcome.code == 75);
  CHECK_THAT(outcome.err, Contains("goes on from step 1") && Contains("variants/mha.cpp"));
  const Json manifest = json_of(run / "manifest.json");
  CHECK(manifest.at("previous").at(0).at("code").at("kinds").at("mha") == "0");
  CHECK(manifest.at("code").at("kinds").at("mha") != "0");
  CHECK(bench.headlab(kAgain).code == 75);  // now it is of this code
}

TEST_CASE("a run that knows no digest of its code is refused, and gone on with where it is named") {
  const Bench bench;
  const fs::path run = interrupted(bench);
  edit_manifest(run, [](Json& manifest) { manifest.erase("code"); });
  check_that_it_is_refused(bench, kAgain, {"no digest"});
  const fs::path moved = bench / "yesterday";  // its name does not count
  fs::rename(run, moved);
  Arguments named = kAgain;
  named.insert(named.end(), {"--resume", moved.string()});
  CHECK(bench.headlab(named).code == 75);
  CHECK_FALSE(fs::exists(run));
  CHECK(json_of(moved / "status.json").at("step") == 2);
}

TEST_CASE("a run whose settings or text were others is refused, finished or not") {
  const Bench bench;
  const bool finished = GENERATE(true, false);
  const fs::path run = finished ? bench.train() : interrupted(bench);
  const Arguments again = finished ? Arguments{"run", "tiny.yaml"} : kAgain;
  SECTION("a default that was another one") {
    std::string config = read_bytes(run / "config.yaml");
    const std::string now = "eps: 1.0e-08", then = "eps: 1.0e-07";
    REQUIRE(config.find(now) != config.npos);
    write_bytes(run / "config.yaml", config.replace(config.find(now), now.size(), then));
    check_that_it_is_refused(bench, again, {"train.eps was 1.0e-07, is 1.0e-08"});
    Arguments named = again;
    named.insert(named.end(), {"--resume", run.string()});
    check_refusal(bench.headlab(named), 2, {"other settings", "train.eps"});
  }
  SECTION("other letters in the text are another run, which says so") {
    std::string text = read_bytes(bench / "text.txt");
    std::swap(text[10], text[11]);
    write_bytes(bench / "text.txt", text);
    const auto files = snapshot(run);
    const Outcome beside = bench.headlab(again);
    CHECK(beside.code == (finished ? 0 : 75));
    CHECK_THAT(beside.err, Contains(run.string() + " has these settings and other data") &&
                               Contains("text.txt was another"));
    CHECK(names_in(run.parent_path()).size() == 2);
    CHECK((snapshot(run) == files));
    Arguments named = again;
    named.insert(named.end(), {"--resume", run.string()});
    check_refusal(bench.headlab(named), 4, {"its data have changed"});
  }
  SECTION("the same text with another time and in another place is the same") {
    fs::rename(bench / "text.txt", bench / "other.txt");
    fs::create_symlink(bench / "other.txt", bench / "text.txt");
    CHECK(bench.headlab(again).code == (finished ? 0 : 75));
  }
}

// As a machine with a GPU would have made it.
void on_a_gpu(Json& manifest) {
  manifest["device"] = "cuda", manifest["precision"] = "bf16", manifest["gpus"] = {"a GPU"};
}
// The same of a version that kept neither.
void on_a_gpu_of_old(Json& manifest) {
  manifest.erase("device"), manifest.erase("precision");
  manifest["gpus"] = {"a GPU"};
}

TEST_CASE("a run of another device and precision is refused, finished or not, named or not") {
  ::setenv("CUDA_VISIBLE_DEVICES", "", /*overwrite=*/1);  // of the commands that follow: a CPU
  const Bench bench;
  const bool finished = GENERATE(true, false);
  const fs::path run = finished ? bench.train() : interrupted(bench);
  const Arguments again = finished ? Arguments{"run", "tiny.yaml"} : kAgain;
  CHECK(json_of(run / "manifest.json").at("device") == "cpu");
  CHECK(json_of(run / "manifest.json").at("precision") == "fp32");
  const bool old = GENERATE(true, false);
  edit_manifest(run, old ? on_a_gpu_of_old : on_a_gpu);
  const auto files = snapshot(bench.path());
  check_refusal(bench.headlab(again), 2,
                {"device was cuda, is cpu; precision was bf16, is fp32",
                 "'--device cuda' goes on with it", "tag=", "--allow-device-change"});
  CHECK((snapshot(bench.path()) == files));
  Arguments named = again;
  named.insert(named.end(), {"--resume", run.string()});
  check_refusal(bench.headlab(named), 2, {"computed otherwise", "device was cuda, is cpu"});

  CHECK(json_of(run / "manifest.json").value("device_change", Json()).is_null());
  Arguments allowed = again;
  allowed.emplace_back("--allow-device-change");
  CHECK(bench.headlab(allowed).code == (finished ? 0 : 75));
  const auto change = json_of(run / "manifest.json").value("device_change", Json());
  CHECK(change.is_null() == finished);  // of a finished run nothing is computed
  if (!finished) CHECK_THAT(change.dump(), Contains("device was cuda, is cpu"));
}

TEST_CASE("what else of the machine was another is told, and the run goes on") {
  const Bench bench;
  const fs::path run = interrupted(bench);
  edit_manifest(run, [](Json& manifest) {
    manifest["versions"]["torch"] = "1.0", manifest["cpu"] = "another CPU";
  });
  const Outcome outcome = bench.headlab(kAgain);
  CHECK(outcome.code == 75);
  CHECK_THAT(outcome.err, Contains("torch was 1.0") && Contains("the CPU was another CPU"));
}

TEST_CASE("a run is found by what it is: settings as they resolve, data by their contents") {
  const Bench bench;
  const fs::path run = bench.train();
  const auto files = snapshot(bench / "runs");
  fs::copy(bench / "text.txt", bench / "copy.txt");
  for (const Arguments& same : {Arguments{"model.d_ff=64"},
                                {"model.kv_heads=2", "train.min_lr=1e-4"},
                                {"data.path=" + (bench / "text.txt").string()},
                                {"data.path=copy.txt"}}) {
    INFO(same[0]);
    CHECK(bench.train(same) == run);
  }
  CHECK((snapshot(bench / "runs") == files));
  const fs::path old = run.parent_path() / "0123abcd-s7";  // as another version named it
  fs::rename(run, old);
  CHECK(bench.train() == old);
  CHECK(bench.train({"data.path=copy.txt"}) == old);
  edit_manifest(old, [](Json& manifest) { manifest.erase("config_hash"); });
  CHECK(bench.train() == old);
  CHECK(bench.train({"train.lr=2e-3"}) != old);
}

TEST_CASE(
    "where only the rest of the program was another, a run goes on or says so beside its numbers") {
  const Bench bench;
  const auto other_rest = [](Json& manifest) { manifest["code"]["rest"] = "0"; };
  const fs::path stopped = interrupted(bench);
  edit_manifest(stopped, other_rest);
  const Outcome goes_on = bench.headlab(kAgain);
  CHECK(goes_on.code == 75);
  CHECK_THAT(goes_on.err, Contains("the program beside its kinds of heads was another"));

  const fs::path run = bench.train();
  edit_manifest(run, other_rest);
  const Outcome outcome = bench.headlab({"run", "tiny.yaml", "--json"});
  CHECK(outcome.code == 0);
  CHECK_THAT(Json::parse(outcome.out).at("code").get<std::string>(), Contains("was another"));
  CHECK_THAT(bench.headlab({"run", "tiny.yaml"}).out, Contains("code: "));
}

TEST_CASE("what is made of a run keeps its code, and is not gone on with by name") {
  const Bench bench;
  const fs::path run = bench.train();
  edit_manifest(run, of_another_kind);
  const std::string made = (bench / "pruned").string();
  REQUIRE(bench.headlab({"prune", run.string(), "--heads", "0:0", "--out", made}).code == 0);
  const Json parent = json_of(fs::path(made) / "manifest.json").at("parent");
  CHECK(parent.at("run") == fs::canonical(run).string());
  CHECK(parent.at("code").at("kinds").at("mha") == "0");
  check_refusal(bench.headlab({"run", "tiny.yaml", "--resume", made}), 2,
                {"made from another run"});
}

TEST_CASE("a command that opens a run says where the source of its kinds was another") {
  const Bench bench;
  const std::string run = bench.train().string();
  for (const bool differs : {false, true}) {
    if (differs) edit_manifest(run, of_another_kind);
    for (const Arguments& words :
         {Arguments{"eval", run}, Arguments{"ablate", run, "--batches", "1"},
          Arguments{"analyze", run, "--batches", "1"},
          Arguments{"prune", run, "--heads", "0:0", "--batches", "1"},
          Arguments{"convert", run, "--to", "collaborative"}}) {
      if (!differs && words[0] != "eval") continue;
      Arguments as_json = words;
      as_json.push_back("--json");
      const Outcome outcome = bench.headlab(as_json);
      INFO(words[0] << ": " << outcome.err);
      REQUIRE(outcome.code == 0);
      CHECK((outcome.err.find("variants/mha.cpp") != std::string::npos) == differs);
      CHECK(Json::parse(outcome.out).contains("code") == differs);
    }
    const Outcome text = bench.headlab({"generate", run, "--prompt", "The", "--tokens", "1"});
    CHECK((text.err.find("variants/mha.cpp") != std::string::npos) == differs);
  }
}

}  // namespace
}  // namespace headlab::testing::test_command_same_run
