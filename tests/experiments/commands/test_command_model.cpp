// The commands that use a trained run: generate, eval, forward.
#include <fmt/format.h>

#include <cmath>

#include "tests/command_testing.h"

namespace headlab::testing::test_command_model {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using Catch::Matchers::StartsWith;

// A finished run of tiny.yaml for the cases of this file that leave it as it is.
struct Trained {
  static const Trained& instance() {
    static const Trained only;
    return only;
  }
  Bench bench;
  fs::path run = bench.train();
};

TEST_CASE("generate says the same with and without the cache") {
  const Bench bench;
  const std::string run = bench.train({"train.steps=60", "train.eval_every=0"}).string();
  const auto generate = [&](Arguments options) {
    options.insert(options.begin(), {"generate", run, "--prompt", "The", "--tokens", "40"});
    const Outcome cached = headlab(options);
    options.push_back("--no-cache");
    const Outcome recomputed = headlab(options);
    INFO(cached.err << recomputed.err);
    CHECK(cached.code == 0);
    CHECK(recomputed.code == 0);
    CHECK(cached.err.empty());
    CHECK(cached.out == recomputed.out);
    CHECK(cached.out.size() == 3 + 40 + 1);
    CHECK_THAT(cached.out, StartsWith("The"));
    return cached.out;
  };
  const std::string greedy = generate({"--temperature", "0"});
  CHECK(generate({"--temperature", "0", "--seed", "5"}) == greedy);
  CHECK(generate({"--top-k", "1", "--seed", "5"}) == greedy);
  const std::string sampled = generate({"--seed", "5"});
  CHECK(generate({"--seed", "5"}) == sampled);
  CHECK(generate({"--seed", "6"}) != sampled);
  CHECK(headlab({"generate", run, "--prompt", "The quick brown fox", "--tokens", "0"}).out ==
        "The quick brown fox\n");
}

void check_that_it_decodes(const std::string& kind) {
  INFO(kind);
  const Json facts = Json::parse(headlab({"describe", kind, "--json"}).out);
  const bool causal = facts.at("traits").at("causal");
  const Bench bench;
  Arguments settings{"train.steps=20", "train.eval_every=0", "model.attention.kind=" + kind};
  if (!causal)
    settings.insert(settings.end(),
                    {"model.causal=false",
                     "data={kind: words, path: text.txt, objective: masked, context: 8}"});
  const std::string run = bench.train(settings).string();
  const Arguments greedy{"generate", run,  "--prompt",      "The",
                         "--tokens", "20", "--temperature", "0"};
  Arguments whole = greedy;
  whole.push_back("--no-cache");
  const Outcome cached = headlab(greedy), recomputed = headlab(whole);
  if (!causal) {
    check_refusal(cached, 2, {"'" + kind + "' heads", "cannot decode"});
    check_refusal(recomputed, 2, {"'" + kind + "' heads", "cannot decode"});
    return;
  }
  CHECK(recomputed.code == 0);
  CHECK(cached.code == 0);
  CHECK(cached.out == recomputed.out);
  const bool says_so = cached.err.find("'" + kind + "' heads") != std::string::npos &&
                       cached.err.find("computed again for each token") != std::string::npos;
  CHECK(says_so == !facts.at("traits").at("decodes with a cache"));
}

TEST_CASE("every kind that decodes says the same with and without the cache", "[.slow]") {
  for (const auto& kind : build::kVariantStems) check_that_it_decodes(std::string(kind));
}

// That a cache changes no number is a law of every kind (tests/core/test_laws.cpp).
TEST_CASE("kinds with keys, with a latent, with neither and blind to order decode as they can") {
  for (const char* kind : {"moh", "mla", "sigmoid", "linformer"}) check_that_it_decodes(kind);
}

TEST_CASE("a prompt that the model cannot read is refused and its character named") {
  const std::string run = Trained::instance().run.string();
  check_refusal(headlab({"generate", run, "--prompt", "caf\u00e9"}), 3, {"'\u00e9' (U+00E9)"});
  check_refusal(headlab({"generate", run, "--prompt", "a\xff"}), 3, {"0xFF", "not UTF-8"});
  check_refusal(headlab({"generate", run, "--prompt", ""}), 2, {"--prompt: is empty"});
}

TEST_CASE("generate refuses data that has no text") {
  const Bench bench;
  write_bytes(bench / "tiny.yaml", replaced(kTinyConfig, "{kind: char, path: text.txt, context: 8}",
                                            "{kind: induction, symbols: 8, context: 16}"));
  const std::string run = bench.train().string();
  check_refusal(headlab({"generate", run, "--prompt", "a"}), 2, {"induction", "no text"});
}

TEST_CASE("eval reports the loss that training ended with") {
  const fs::path run = Trained::instance().run;
  const Json metrics = json_of(run / "status.json").at("metrics");
  const Outcome outcome = headlab({"eval", run.string(), "--json"});
  CHECK(lines_of(outcome.out).size() == 1);
  const Json object = Json::parse(outcome.out);
  CHECK(object.at("split") == "val");
  CHECK(object.at("step") == 5);
  CHECK(object.at("loss").get<double>() ==
        Approx(metrics.at("val/loss").get<double>()).epsilon(1e-6));
  CHECK(object.at("accuracy") == metrics.at("val/accuracy"));
  CHECK(object.at("tokens") == metrics.at("val/tokens"));
  CHECK(object.at("examples").get<int64_t>() * 8 == object.at("tokens").get<int64_t>());
  CHECK(object.at("perplexity").get<double>() ==
        Approx(metrics.at("val/perplexity").get<double>()).epsilon(1e-6));
  CHECK(object.at("perplexity").get<double>() ==
        Approx(std::exp(object.at("loss").get<double>())).epsilon(1e-9));

  const auto evaluate = [&](const std::string& checkpoint, const std::string& split) {
    return Json::parse(
        headlab({"eval", (run / checkpoint).string(), "--json", "--split", split}).out);
  };
  CHECK(evaluate("ckpt/step-00000004", "val").at("step") == 4);
  CHECK(evaluate("ckpt/step-00000004", "val").at("loss") != object.at("loss"));
  CHECK(evaluate("ckpt/last", "val") == object);
  CHECK(evaluate("ckpt/last", "train").at("examples") > object.at("examples"));
  CHECK_THAT(headlab({"eval", run.string()}).out, StartsWith("val loss ") && Contains("(step 5)"));
}

TEST_CASE("eval says what a guess and counts of the training text reach on the same tokens") {
  const fs::path run = Trained::instance().run;
  const auto of = [&](const Arguments& more) {
    Arguments words{"eval", run.string(), "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return Json::parse(headlab(words).out);
  };
  const auto val = of({});
  const auto& references = val.at("references");
  CHECK(references == json_of(run / "manifest.json").at("references"));
  CHECK(references.at("measured_on") ==
        Json{{"split", "val"}, {"examples", val.at("examples")}, {"tokens", val.at("tokens")}});
  const auto tokens = json_of(run / "data.json").at("shape").at("vocabulary").get<double>();
  const auto& chance = references.at("chance");
  CHECK(chance.at("loss").get<double>() == Approx(std::log(tokens)));
  CHECK(chance.at("accuracy").get<double>() == Approx(1 / tokens));
  CHECK(references.at("bigram").at("loss") < references.at("unigram").at("loss"));
  const auto train = of({"--split", "train"}).at("references");
  CHECK(train.at("measured_on").at("split") == "train");
  CHECK(train.at("chance").at("comment") == chance.at("comment"));
  CHECK(train.at("chance").at("loss").get<double>() == Approx(std::log(tokens)));
  CHECK(train.at("unigram") != references.at("unigram"));
  const auto text = (Trained::instance().bench / "text.txt").string();
  CHECK_FALSE(of({"--text", text}).at("references").contains("unigram"));
  CHECK_THAT(
      headlab({"eval", run.string()}).out,
      Contains(fmt::format("\n  chance: loss {:.4f} nat, accuracy {:.4f} (a guess: any of {} "
                           "tokens)\n  unigram: loss ",
                           std::log(tokens), 1 / tokens, tokens)));
}

TEST_CASE("eval refuses a split that is unknown or that the data does not have") {
  const std::string run = Trained::instance().run.string();
  check_refusal(headlab({"eval", run, "--split", "vla"}), 2, {"'vla'", "train, val or test"});
  check_refusal(headlab({"eval", run, "--split", "test", "--json"}), 3, {"test"});
}

TEST_CASE("forward writes logits and every layer's input and maps") {
  const Bench bench;
  const std::string run = bench.train({"model.layers=2"}).string();
  const std::vector<int64_t> ids{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const std::vector<int64_t> targets{2, 3, 4, 5, -1, 7, 8, 9, 10, -1};
  write_safetensors(bench / "in.safetensors",
                    {integers("in.ids", {2, 5}, ids), integers("in.targets", {2, 5}, targets)});
  const Outcome outcome =
      bench.headlab({"forward", run, "in.safetensors", "--out", "out.safetensors", "--gradients"});
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  const SafetensorsFile file(bench / "out.safetensors");
  const TensorEntry* logits_entry = file.find("out.logits");
  REQUIRE(logits_entry != nullptr);
  const int64_t vocabulary = logits_entry->shape.back();
  const auto logits = floats(file, "out.logits", {2, 5, vocabulary});
  for (const std::string name : {"out.hidden.0", "out.hidden.1", "out.hidden.2"})
    floats(file, name, {2, 5, 16});
  for (const std::string name : {"out.attention.0", "out.attention.1"}) {
    const auto map = floats(file, name, {2, 2, 5, 5});  // [B,H,T,S]
    for (size_t row = 0; row < map.size() / 5; ++row) {
      double sum = 0;
      for (size_t j = 0; j < 5; ++j) sum += map[row * 5 + j];
      CHECK(sum == Approx(1).margin(1e-5));
      for (size_t j = row % 5 + 1; j < 5; ++j) CHECK(map[row * 5 + j] == 0);
    }
  }
  floats(file, "grad.blocks.1.attention.q.weight", {16, 16});
  floats(file, "grad.embed.token.weight", {vocabulary, 16});

  double loss = 0, scored = 0;
  for (size_t n = 0; n < targets.size(); ++n) {
    if (targets[n] < 0) continue;
    double sum = 0;
    const float* row = &logits[n * vocabulary];
    for (int64_t v = 0; v < vocabulary; ++v) sum += std::exp(static_cast<double>(row[v]));
    loss += std::log(sum) - row[targets[n]];
    ++scored;
  }
  CHECK(floats(file, "out.loss", {})[0] == Approx(loss / scored).epsilon(1e-4));
}

TEST_CASE("forward refuses inputs that do not fit the model") {
  const Bench& bench = Trained::instance().bench;
  const std::string run = Trained::instance().run.string();
  const std::vector<int64_t> ids{0, 1, 2, 3, 4, 5, 6, 7, 8}, wild{0, 999}, negative{0, -1};
  const auto check = [&](std::vector<TensorEntry> entries, const std::string& said) {
    write_safetensors(bench / "in.safetensors", std::move(entries));
    check_refusal(bench.headlab({"forward", run, "in.safetensors", "--out", "out.safetensors"}), 3,
                  {"in.safetensors: ", said});
    CHECK_FALSE(fs::exists(bench / "out.safetensors"));
  };
  check({integers("in.ids", {1, 2}, wild)}, "in.ids must lie in 0 .. ");
  check({integers("in.ids", {1, 2}, negative)}, "in.ids must lie in 0 .. ");
  check({integers("in.ids", {2}, wild)}, "in.ids must be integers [B,T]");
  check({integers("in.id", {1, 2}, wild)}, "in.id is no input of this model; it takes in.ids, ");
  check({}, "in.ids is missing");
  check({integers("in.ids", {3, 3}, ids), integers("in.targets", {1, 9}, ids)}, "in.targets");
  check({integers("in.ids", {1, 9}, ids)}, "8");  // the context
}

}  // namespace
}  // namespace headlab::testing::test_command_model
