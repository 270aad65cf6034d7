// `headlab convert` from outside: what it reports, what it writes, and that every command goes on
// with it.
#include "tests/command_testing.h"

namespace headlab::testing::test_command_convert {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

const Arguments kTwoLayers{"model.layers=2", "model.heads=4",
                           "model.attention={kind: mha, bias: true}"};

Json converted(const Bench& bench, const fs::path& run, Arguments options) {
  options.insert(options.begin(), {"convert", run.string(), "--json"});
  const Outcome outcome = bench.headlab(options);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  return Json::parse(outcome.out);
}

Json evaluation(const Bench& bench, const std::string& run) {
  const Outcome outcome = bench.headlab({"eval", run, "--json"});
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  return Json::parse(outcome.out);
}

TEST_CASE("an exact copy has the old model's loss and is a run like any other") {
  const Bench bench;
  const fs::path run = bench.train(kTwoLayers);
  const Json report = converted(bench, run, {"--to", "collaborative", "--out", "copy"});
  CHECK(report.at("from") == run.string());
  CHECK(report.at("step") == 5);
  REQUIRE(report.at("layers").size() == 2);
  for (const Json& layer : report.at("layers")) {
    CHECK(layer.at("weights_error") == 0);
    CHECK(layer.at("output_error").get<double>() < 1e-5);
    CHECK(layer.at("output_error").get<double>() > 0);
  }
  CHECK(report.at("logits_error").get<double>() < 1e-5);
  const double loss = evaluation(bench, run.string()).at("loss").get<double>();
  CHECK(report.at("loss_before").get<double>() == Approx(loss).epsilon(1e-9));
  CHECK(report.at("loss_after").get<double>() == Approx(loss).epsilon(1e-6));
  CHECK(evaluation(bench, "copy").at("loss") == report.at("loss_after"));
  CHECK(evaluation(bench, "copy/ckpt/last").at("step") == 5);

  CHECK(names_in(bench / "copy") ==
        std::set<std::string>{"ckpt", "config.yaml", "data.json", "manifest.json", "status.json"});
  const std::string config = read_bytes(bench / "copy/config.yaml");
  CHECK_THAT(config, Contains("kind: collaborative") && Contains("shared_dim: 16"));
  CHECK(json_of(bench / "copy/status.json").at("status") == "finished");
  const Json manifest = json_of(bench / "copy/manifest.json");
  CHECK(manifest.at("status") == "finished");
  CHECK(manifest.at("converted").at("from") == run.string());
  CHECK(manifest.at("converted").at("layers") == report.at("layers"));
  CHECK(manifest.at("data")[0].at("path") == (fs::canonical(bench.path()) / "text.txt").string());
  const auto said = [&](const std::string& from) {
    return bench.headlab({"generate", from, "--prompt", "The", "--temperature", "0"}).out;
  };
  CHECK(said("copy") == said(run.string()));
  CHECK_FALSE(fs::exists(bench / ".tmp-copy-made"));
}

TEST_CASE("latent heads are calibrated on training data and make a run like any other") {
  const Bench bench;
  const fs::path plain = bench.train(kTwoLayers);
  const Json whole = converted(bench, plain, {"--to", "mla", "--kv-rank", "32", "--out", "whole"});
  CHECK(whole.at("loss_after").get<double>() ==
        Approx(whole.at("loss_before").get<double>()).epsilon(1e-5));
  for (const Json& layer : whole.at("layers")) {
    CHECK(layer.at("cache_before") == 32);
    CHECK(layer.at("cache_after") == 32);
    CHECK(layer.at("latent_share").get<double>() == Approx(1));
    CHECK_FALSE(layer.contains("rope_share"));
  }
  CHECK(evaluation(bench, "whole").at("loss") == whole.at("loss_after"));

  Arguments turning = kTwoLayers;
  turning.insert(turning.end(), {"model.position=rope", "name=turning"});
  const fs::path turned = bench.train(turning);
  const Json few =
      converted(bench, turned,
                {"--to", "mla", "--kv-rank", "8", "--q-rank", "6", "--rope-dim", "2", "--balance",
                 "off", "--freqfold", "auto", "--calibration-batches", "2", "--out", "few"});
  for (const Json& layer : few.at("layers")) {
    CHECK(layer.at("cache_after") == 10);
    CHECK(layer.at("rope_share").get<double>() < 1);
  }
  CHECK_THAT(read_bytes(bench / "few/config.yaml"),
             Contains("kind: mla") && Contains("layout: interleaved"));
  CHECK(evaluation(bench, "few").at("loss") == few.at("loss_after"));
}

TEST_CASE("layers of lower rank keep their own options in the config that comes out") {
  const Bench bench;
  Arguments settings = kTwoLayers;
  settings.push_back("model.attention_at={\"1\": {kind: mha, scale: 0.7, o_bias: false}}");
  const fs::path run = bench.train(settings);
  const Json report = converted(
      bench, run, {"--to", "collaborative", "--shared-dim", "5", "--seeds", "1", "--out", "low"});
  for (const Json& layer : report.at("layers"))
    CHECK(layer.at("weights_error").get<double>() > 0.01);
  CHECK(report.at("parameters_after") < report.at("parameters_before"));
  CHECK(evaluation(bench, "low").at("loss") == report.at("loss_after"));
  const std::string config = read_bytes(bench / "low/config.yaml");
  CHECK_THAT(config,
             Contains("scale: 0.7") && Contains("scale: head") && Contains("o_bias: false"));
}

TEST_CASE("fewer key and value heads") {
  const Bench bench;
  const fs::path run = bench.train(kTwoLayers);
  const Json plain = converted(bench, run, {"--kv-heads", "2", "--out", "grouped"});
  const Json aligned = converted(bench, run, {"--to", "mha", "--kv-heads", "2", "--align"});
  for (size_t l : {0, 1}) {
    const Json &a = plain.at("layers")[l], &b = aligned.at("layers")[l];
    CHECK(a.at("weights_error").get<double>() > 0.1);
    CHECK(b.at("weights_error") < a.at("weights_error"));
    CHECK_FALSE(a.contains("order"));
    CHECK(b.at("order").size() == 4);
  }
  CHECK(evaluation(bench, "grouped").at("loss") == plain.at("loss_after"));
  CHECK_THAT(read_bytes(bench / "grouped/config.yaml"), Contains("kv_heads: 2"));
  const SafetensorsFile file(bench / "grouped/ckpt/last/model.safetensors");
  floats(file, "blocks.1.attention.k.weight", {8, 16});
  floats(file, "blocks.1.attention.q.weight", {16, 16});

  const Json further = converted(bench, bench / "grouped", {"--kv-heads", "1"});
  CHECK(further.at("loss_before") == plain.at("loss_after"));
  const Json back = converted(bench, bench / "grouped", {"--to", "collaborative", "--out", "back"});
  CHECK(back.at("logits_error").get<double>() < 1e-5);
  CHECK_THAT(read_bytes(bench / "back/config.yaml"), !Contains("kv_heads"));
  CHECK(evaluation(bench, "back").at("loss") == back.at("loss_after"));
}

TEST_CASE("tuning goes on where the run stood and lowers the loss") {
  const Bench bench;
  const fs::path run = bench.train({"train.steps=60", "train.eval_every=0", "train.lr=0.01"});
  const Json report = converted(bench, run, {"--kv-heads", "1", "--tune", "40", "--out", "tuned"});
  CHECK(report.at("tuned") == 40);
  CHECK(report.at("loss_tuned") < report.at("loss_after"));
  CHECK(evaluation(bench, "tuned").at("loss") == report.at("loss_tuned"));
  CHECK(evaluation(bench, "tuned").at("step") == 100);
  CHECK(evaluation(bench, "tuned/ckpt/step-00000060").at("loss") == report.at("loss_after"));
  CHECK(json_of(bench / "tuned/status.json").at("status") == "finished");
  CHECK(json_of(bench / "tuned/manifest.json").at("converted").at("from") == run.string());
  CHECK_THAT(read_bytes(bench / "tuned/config.yaml"),
             Contains("steps: 100") && Contains("decay_steps: 60"));
  const auto rows = lines_of(read_bytes(bench / "tuned/metrics.jsonl"));
  REQUIRE(rows.size() == 40);
  CHECK(Json::parse(rows[0]).at("step") == 61);
  CHECK(Json::parse(rows[0]).at("lr").get<double>() == Approx(0.001));  // where the cosine ended
  CHECK(bench.headlab({"inspect", "tuned/log.h5"}).code == 0);
}

TEST_CASE("gates around a trained model open fewer heads while it goes on training") {
  const Bench bench;
  Arguments settings = kTwoLayers;
  settings.insert(settings.end(), {"train.steps=60", "train.eval_every=0", "train.lr=0.01"});
  const fs::path run = bench.train(settings);
  const Json report = converted(
      bench, run, {"--to", "gated", "--target-heads", "3", "--tune", "80", "--out", "gated"});
  CHECK(report.at("to") == "gated");
  CHECK(report.at("logits_error") == 0);
  CHECK(report.at("loss_after") == report.at("loss_before"));
  CHECK(evaluation(bench, "gated").at("loss") == report.at("loss_tuned"));
  CHECK(evaluation(bench, "gated/ckpt/step-00000060").at("loss") == report.at("loss_before"));
  CHECK_THAT(read_bytes(bench / "gated/config.yaml"),
             Contains("target: {heads: 3, warmup: 40, begin: 60, start: 0.0, scope: model}"));
  const Json& gates = report.at("gates");
  CHECK(gates.at("heads") == 8);
  CHECK(gates.at("kept").size() == 3);
  CHECK(gates.at("shut").size() == 5);
  const auto rows = lines_of(read_bytes(bench / "gated/metrics.jsonl"));
  REQUIRE(rows.size() == 80);
  const Json first = Json::parse(rows.front()), last = Json::parse(rows.back());
  CHECK(first.at("gates/alive") == 8);
  CHECK(last.at("gates/expected").get<double>() < first.at("gates/expected").get<double>() - 1);

  // Frozen, the gates alone train: every other weight is the old run's.
  converted(bench, run,
            {"--to", "gated", "--penalty", "0.5", "--tune", "20", "--freeze", "--out", "frozen"});
  CHECK_THAT(read_bytes(bench / "frozen/config.yaml"),
             Contains("penalty: 0.5") && Contains("gates_only: true"));
  const SafetensorsFile old(run / "ckpt/last/model.safetensors");
  const SafetensorsFile frozen(bench / "frozen/ckpt/last/model.safetensors");
  CHECK(floats(frozen, "blocks.1.attention.inner.q.weight", {16, 16}) ==
        floats(old, "blocks.1.attention.q.weight", {16, 16}));
  CHECK(floats(frozen, "blocks.0.mlp.up.weight", {64, 16}) ==
        floats(old, "blocks.0.mlp.up.weight", {64, 16}));
  for (const float a : floats(frozen, "blocks.0.attention.gate.log_alpha", {4})) CHECK(a < 2.4);
}

TEST_CASE("what a killed conversion left behind does not stand in the way of the next") {
  const Bench bench;
  const fs::path run = bench.train();
  const fs::path left = bench / "deep/.tmp-x-made";
  fs::create_directories(left / "ckpt/.tmp-step-00000005");
  fs::copy(run / "config.yaml", left / "config.yaml");
  CHECK_FALSE(bench.headlab({"eval", "deep/x"}).code == 0);
  const Json report = converted(bench, run, {"--kv-heads", "1", "--out", "deep/x/"});
  CHECK(evaluation(bench, "deep/x").at("loss") == report.at("loss_after"));
  CHECK(names_in(bench / "deep") == std::set<std::string>{"x"});
  CHECK(names_in(bench / "deep/x/ckpt") == std::set<std::string>{"best", "last", "step-00000005"});
}

TEST_CASE("the report in words has a line for each layer") {
  const Bench bench;
  const fs::path run = bench.train(kTwoLayers);
  const Outcome outcome = bench.headlab({"convert", run.string(), "--kv-heads", "1", "--align"});
  CHECK(outcome.code == 0);
  CHECK(outcome.err.empty());
  CHECK(lines_of(outcome.out).size() == 1 + 2 + 2);
  CHECK_THAT(outcome.out, Contains("weights error") && Contains("heads in order") &&
                              Contains("logits error") && Contains("val loss "));
}

TEST_CASE("a conversion that cannot be is refused and leaves nothing behind") {
  const Bench bench;
  const std::string run = bench.train(kTwoLayers).string();
  const std::string rotary = bench.train({"model.position=rope", "name=rotary"}).string();
  const auto before = names_in(bench.path());
  const auto check = [&](Arguments options, int code, const std::string& said) {
    options.insert(options.begin(), "convert");
    check_refusal(bench.headlab(options), code, {said});
    CHECK(names_in(bench.path()) == before);
  };
  check({run, "--out", "x"}, 2, "--to collaborative, gated or mla, or --kv-heads N");
  check({run, "--to", "mha", "--out", "x"}, 2, "--kv-heads N");
  check({run, "--to", "gated", "--kv-rank", "4"}, 2, "are for --to mla");
  check({run, "--to", "mla", "--balance", "0"}, 2, "--balance: must be a number above 0, or off");
  check({run, "--to", "mla", "--kv-rank", "99", "--out", "x"}, 2, "kv_rank must be at most 32");
  check({run, "--to", "collaborative", "--kv-heads", "2", "--out", "x"}, 2, "--to mha");
  check({run, "--to", "collaborative", "--align", "--out", "x"}, 2, "--align");
  check({run, "--kv-heads", "2", "--shared-dim", "4", "--out", "x"}, 2, "--shared-dim");
  check({run, "--kv-heads", "2", "--tune", "4"}, 2, "--tune: needs --out");
  check({run, "--to", "collaborative", "--shared-dim", "17", "--out", "x"}, 2, "1 .. 16");
  check({run, "--kv-heads", "3", "--out", "x"}, 2, "layer 0: has 4 kv heads");
  check({rotary, "--to", "collaborative", "--out", "x"}, 2, "layer 0: rotary positions");
  check({run, "--kv-heads", "2", "--target-heads", "3", "--out", "x"}, 2, "--to gated");
  check({run, "--to", "collaborative", "--freeze", "--out", "x"}, 2, "--freeze");
  check({run, "--to", "gated", "--kv-heads", "2", "--out", "x"}, 2, "--to mha");
  check({run, "--to", "gated", "--target-heads", "3", "--penalty", "1"}, 2, "one of the two");
  check({run, "--to", "gated", "--target-heads", "9", "--out", "x"}, 2, "must be at most 8");
  check({run, "--to", "gated", "--freeze"}, 2, "--freeze: needs --tune");
  check({"nothing", "--kv-heads", "2", "--out", "x"}, 4, "not a run");
  check({run, "--kv-heads", "2", "--out", run}, 4, "a run is there already");
  check({run, "--kv-heads", "2", "--out", "tiny.yaml"}, 4, "is a file");
  check({run, "--kv-heads", "2", "--out", "tiny.yaml/x"}, 4, "tiny.yaml");
}

}  // namespace
}  // namespace headlab::testing::test_command_convert
