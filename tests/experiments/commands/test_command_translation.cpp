// A model that translates, from outside: its lines, its BLEU, and what other models say of both.
#include <fstream>

#include "tests/command_testing.h"
#include "tests/safetensors_testing.h"

namespace headlab::testing::test_command_translation {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

// Numbers in words, in another language and backwards: few enough to learn by heart. One training
// for all cases of this file.
class TranslationBench : public TrainedBench {
 public:
  static const TranslationBench& instance() {
    static const TranslationBench only;
    return only;
  }

 private:
  TranslationBench() {
    const std::vector<std::pair<std::string, std::string>> words{
        {"eins", "one"}, {"zwei", "two"}, {"drei", "three"}, {"vier", "four"}, {"acht", "eight"}};
    std::ofstream source(*this / "lines.de"), target(*this / "lines.en");
    for (size_t n = 0; n < 125; ++n) {
      const auto &a = words[n % 5], &b = words[n / 5 % 5], &c = words[n / 25];
      source << a.first << " " << b.first << " " << c.first << " .\n";
      target << c.second << " " << b.second << " " << a.second << " .\n";
    }
    source.close(), target.close();
    const std::string data =
        "data={kind: lines, source: lines.de, target: lines.en, min_count: 1, "
        "validation_source: lines.de, validation_target: lines.en, context: 8}";
    run_ =
        train({data, "model={kind: seq2seq, layers: 1, d_model: 32, heads: 2, d_ff: 64}",
               "train.max_positions=320", "train.epochs=60", "train.steps=400", "train.lr=5.0e-3",
               "train.warmup=0.1", "train.eval_every=50", "train.bleu_every=100"})
            .string();
  }
};

TEST_CASE("BLEU is logged while training where train.bleu_every asks, and at the end") {
  const TranslationBench& bench = TranslationBench::instance();
  std::vector<int64_t> steps;
  Json last;
  for (const auto& line : lines_of(read_bytes(fs::path(bench.run()) / "metrics.jsonl"))) {
    last = Json::parse(line);
    if (last.contains("val/bleu")) steps.push_back(last["step"].get<int64_t>());
  }
  REQUIRE(steps.size() >= 2);
  for (size_t n = 0; n + 1 < steps.size(); ++n)
    CHECK(steps[n] == static_cast<int64_t>(100 * (n + 1)));
  CHECK(last.at("step") == steps.back());  // the end, a multiple or not
  const Json greedy = bench.json({"eval", "--beam", "1"});
  CHECK(last.at("val/bleu") == greedy.at("bleu"));
  CHECK(
      Json::parse(read_bytes(fs::path(bench.run()) / "status.json")).at("metrics").at("val/bleu") ==
      greedy.at("bleu"));
  const auto uneven = bench.headlab({"validate", "tiny.yaml", "train.bleu_every=3"});
  CHECK(uneven.code == 2);
  CHECK_THAT(uneven.err, Contains("train.bleu_every: must be a multiple of eval_every, 2"));
  const auto text = bench.headlab({"run", "tiny.yaml", "train.bleu_every=4"});
  CHECK(text.code == 2);
  CHECK_THAT(text.err, Contains("train.bleu_every: data of kind 'char' are not translated"));
}

TEST_CASE("a model learns to translate, line by line and by BLEU") {
  const TranslationBench& bench = TranslationBench::instance();
  const Json greedy = bench.json({"eval", "--beam", "1"});
  CHECK(greedy.at("bleu").get<double>() > 90);
  CHECK(greedy.at("beam") == 1);
  CHECK(greedy.at("length_power") == 1.0);
  CHECK(greedy.at("reference_tokens") == 500);
  CHECK_FALSE(bench.json({"eval"}).contains("bleu"));
  const Json beam = bench.json({"eval", "--beam", "3", "--length-power", "0.5"});
  CHECK(beam.at("bleu").get<double>() > 90);
  CHECK(beam.at("length_power") == 0.5);
  const auto said = bench.headlab({"eval", bench.run(), "--beam", "2"});
  CHECK_THAT(said.out, Contains("BLEU ") && Contains("(beam 2, power 1)"));

  std::ofstream(bench / "some.de") << "eins zwei acht .\nvier drei eins .\n";
  const std::string want = "eight two one .\none three four .\n";
  for (const Arguments& options :
       {Arguments{}, {"--beam", "4"}, {"--beam", "2", "--length-power", "0"}, {"--no-cache"}}) {
    Arguments arguments{"generate", bench.run(), "--input", "some.de"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = bench.headlab(arguments);
    INFO(outcome.err);
    CHECK(outcome.code == 0);
    CHECK(outcome.out == want);
  }
  std::ofstream(bench / "some.de") << "\xEF\xBB\xBF"
                                   << "eins zwei acht .\r\nvier drei eins .\r\n";
  CHECK(bench.headlab({"generate", bench.run(), "--input", "some.de"}).out == want);
}

TEST_CASE("maps of texts of different lengths are kept, with the tokens of both sides") {
  const TranslationBench& bench = TranslationBench::instance();
  std::ofstream source(bench / "more.de"), target(bench / "more.en");
  source << "eins .\nzwei drei vier .\n", target << "one two three .\none .\n";
  source.close(), target.close();
  const auto run = bench
                       .train({"data={kind: lines, source: lines.de, target: lines.en, min_count: "
                               "1, validation_source: more.de, validation_target: more.en, "
                               "context: 8}",
                               "model={kind: seq2seq, layers: 1, d_model: 32, heads: 2, d_ff: 64}",
                               "train.max_positions=320", "train.steps=2"})
                       .string();
  const Outcome done = bench.headlab({"analyze", run, "--maps", "2", "--stats", "attention",
                                      "token", "query_token", "key_text", "query_text", "--json"});
  INFO(done.err);
  REQUIRE(done.code == 0);
  const Json sites = Json::parse(done.out).at("sites");
  const auto tokens = [&](const char* site, const char* name) {
    std::vector<std::vector<int64_t>> counts;  // of examples: how many are there, how many not
    for (const Json& row : sites.at(site).at("statistics").at(name)) {
      const auto none = std::count(row.begin(), row.end(), Json());
      counts.push_back({std::ssize(row) - none, none});
    }
    return counts;
  };
  using Counts = std::vector<std::vector<int64_t>>;
  CHECK(tokens("encoder_self", "token") == Counts{{3, 2}, {5, 0}});  // with </s>
  CHECK(tokens("cross", "token") == Counts{{3, 2}, {5, 0}});
  CHECK(tokens("cross", "query_token") == Counts{{5, 0}, {3, 2}});  // behind <s>
  CHECK(tokens("decoder_self", "token") == Counts{{5, 0}, {3, 2}});
  CHECK_FALSE(sites.at("decoder_self").at("statistics").contains("query_token"));
  const Json& cross = sites.at("cross").at("statistics");
  CHECK(cross.at("key_text")[0] == Json{"eins", ".", "</s>", "", ""});
  CHECK(cross.at("query_text")[0] == Json{"<s>", "one", "two", "three", "."});
  CHECK(cross.at("query_text")[1][3].get<std::string>().empty());
  CHECK(sites.at("decoder_self").at("statistics").at("query_text") == cross.at("query_text"));
  const Json& a = cross.at("attention");
  CHECK(a[0][0][0][4][2].get<double>() > 0);
  CHECK(a[0][0][0][4][3].is_null());
  CHECK(a[1][0][0][2][4].get<double>() > 0);
  CHECK(a[1][0][0][3][0].is_null());
}

TEST_CASE("what a translating model cannot do is refused with the reason") {
  const TranslationBench& bench = TranslationBench::instance();
  const auto said = [&](const Arguments& arguments, int code) {
    const Outcome outcome = bench.headlab(arguments);
    CHECK(outcome.code == code);
    return outcome.err;
  };
  CHECK_THAT(said({"generate", bench.run()}, 2), Contains("--input FILE names what"));
  CHECK_THAT(said({"generate", bench.run(), "--prompt", "eins"}, 2), Contains("--input FILE"));
  CHECK_THAT(said({"generate", bench.run(), "--input", "none.de"}, 3), Contains("none.de"));
  std::ofstream(bench / "long.de") << "eins .\neins eins eins eins eins eins eins eins .\n";
  CHECK_THAT(said({"generate", bench.run(), "--input", "long.de"}, 3),
             Contains("long.de:2: has 9 tokens, the model reads 7"));

  CHECK_THAT(said({"generate", bench.run(), "--input", "."}, 3), Contains("cannot be read"));
  std::ofstream(bench / "bad.de") << "eins .\nzw\xC3(ei .\n";
  CHECK_THAT(said({"generate", bench.run(), "--input", "bad.de"}, 3), Contains("bad.de:2"));
  const std::string wide = "2147483647";
  CHECK_THAT(said({"generate", bench.run(), "--input", "bad.de", "--temperature", "0.5"}, 2),
             Contains("this one translates"));
  std::ofstream(bench / "good.de") << "eins .\n";
  CHECK_THAT(said({"generate", bench.run(), "--input", "good.de", "--beam", wide}, 2),
             Contains("--beam: " + wide + " is more than the"));
  CHECK_THAT(said({"eval", bench.run(), "--beam", wide}, 2), Contains("--beam: "));
  CHECK_THAT(said({"eval", bench.run(), "--length-power", "0.5"}, 2), Contains("--beam N asks"));
  CHECK_THAT(said({"analyze", bench.run(), "--treebank", "none.conllu"}, 2),
             Contains("models that read one text"));

  const auto text = bench.train().string();
  CHECK_THAT(said({"eval", text, "--beam", "1"}, 2), Contains("translates nothing"));
  CHECK_THAT(said({"generate", text, "--input", "long.de"}, 2), Contains("use --prompt"));
  CHECK_THAT(said({"generate", text, "--beam", "2"}, 2), Contains("models that translate"));
}

TEST_CASE("pairs of lines are for models that read both, and have some for validation") {
  const Bench bench;
  std::ofstream(bench / "lines.de") << "eins zwei .\neins .\n";
  std::ofstream(bench / "lines.en") << "one two .\none .\n";
  const std::string texts = "data={kind: lines, source: lines.de, target: lines.en, context: 8, ";
  const std::string both = "validation_source: lines.de, validation_target: lines.en";
  const auto refused = [&](const std::string& data, const std::string& model) {
    const Outcome outcome =
        bench.headlab({"run", "tiny.yaml", texts + data + "min_count: 1}", "model.kind=" + model});
    CHECK(outcome.code == 2);
    return outcome.err;
  };
  CHECK_THAT(refused("", "seq2seq"), Contains("data.validation_source: is needed"));
  for (const char* model : {"decoder", "encoder"})
    CHECK_THAT(refused(both + ", ", model), Contains("model.kind: reads one text"));
  CHECK_FALSE(fs::exists(bench / "runs"));
}

TEST_CASE("heads of all sites together are what a target of gates counts") {
  const TranslationBench& bench = TranslationBench::instance();  // two heads in each of three sites
  CHECK(bench.json({"convert", "--to", "gated", "--target-heads", "5", "--out", "gated"})
            .is_object());
  CHECK_THAT(bench.headlab({"convert", bench.run(), "--to", "gated", "--target-heads", "7"}).err,
             Contains("target.heads: must be at most 6"));
  const auto refused = [&](const std::string& encoder, const std::string& decoder) {
    const Outcome outcome =
        bench.headlab({"run", (fs::path(bench.run()) / "config.yaml").string(), "name=other",
                       "model.encoder=" + encoder, "model.decoder=" + decoder, "--dry-run"});
    CHECK(outcome.code == (outcome.err.find("target") == std::string::npos ? 0 : 2));
    return outcome.err;
  };
  const auto gated = [](int heads) {
    return "{kind: gated, target: {heads: " + std::to_string(heads) + "}}";
  };
  CHECK_THAT(refused("{}", "{cross: " + gated(3) + "}"),
             Contains("model.decoder.cross.target.heads: must be at most 2"));
  CHECK_THAT(refused("{attention: " + gated(2) + "}", "{attention: " + gated(1) + "}"),
             Contains("model.decoder.attention.target: differs from layer to layer"));
  CHECK_THAT(refused("{attention: " + gated(3) + "}", "{cross: " + gated(3) + "}"),
             !Contains("target"));
}

TEST_CASE("forward takes the inputs of a model that translates, padded as they are") {
  const TranslationBench& bench = TranslationBench::instance();
  const std::vector<int64_t> source{4, 5, 3, 0, 5, 6, 7, 3}, ids{2, 4, 2, 5};
  const std::vector<int64_t> mask{1, 1, 1, 0, 1, 1, 1, 1}, short_source{4, 5, 3}, short_ids{2, 4};
  const auto logits = [&](std::vector<TensorEntry> entries, std::vector<int64_t> shape) {
    write_safetensors(bench / "in.safetensors", std::move(entries));
    const Outcome outcome =
        bench.headlab({"forward", bench.run(), "in.safetensors", "--out", "out.safetensors"});
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    const SafetensorsFile file(bench / "out.safetensors");
    CHECK(file.find("out.encoder.hidden.1") != nullptr);
    CHECK(file.find("out.cross.attention.0") != nullptr);
    REQUIRE(file.find("out.logits") != nullptr);
    shape.push_back(file.find("out.logits")->shape.back());
    return floats(file, "out.logits", shape);
  };
  const auto both =
      logits({integers("in.source_ids", {2, 4}, source), integers("in.source_mask", {2, 4}, mask),
              integers("in.decoder_ids", {2, 2}, ids)},
             {2, 2});
  const auto alone = logits({integers("in.source_ids", {1, 3}, short_source),
                             integers("in.decoder_ids", {1, 2}, short_ids)},
                            {1, 2});
  for (size_t i = 0; i < alone.size(); ++i) CHECK(both[i] == Approx(alone[i]).margin(1e-5));

  const auto refused = [&](std::vector<TensorEntry> entries) {
    write_safetensors(bench / "in.safetensors", std::move(entries));
    const Outcome outcome =
        bench.headlab({"forward", bench.run(), "in.safetensors", "--out", "no.safetensors"});
    CHECK(outcome.code == 3);
    return outcome.err;
  };
  CHECK_THAT(refused({integers("in.source_ids", {2, 4}, source)}),
             Contains("in.decoder_ids is missing"));
  CHECK_THAT(refused({integers("in.ids", {2, 4}, source)}),
             Contains("in.ids is no input of this model; it takes in.source_ids"));
}

}  // namespace
}  // namespace headlab::testing::test_command_translation
