// Texts that a command is given: windows of any length, and imported models, which have no data
// of their own.
#include <fmt/format.h>

#include "tests/command_testing.h"

namespace headlab::test_command_given_text {
namespace {

namespace fs = std::filesystem;
using namespace testing;
using Catch::Contains;

constexpr const char* kText = "The quick brown fox jumps over a lazy dog, and naps.\n";

// A language model that was trained here, exported and imported again: the run `taken`, once for
// all cases of this file.
class Imported : public Bench {
 public:
  static const Imported& instance() {
    static const Imported only;
    return only;
  }
  Json succeed(Arguments arguments) const {
    const bool json = arguments[0] != "generate";
    if (json) arguments.emplace_back("--json");
    const Outcome outcome = headlab(arguments);
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    return json ? Json::parse(outcome.out) : Json(outcome.out);
  }

 private:
  Imported() {
    const std::string run = train({"data.context=16", "model.position=rope", "model.norm=rms",
                                   "model.mlp=swiglu", "train.steps=60", "train.lr=0.01"})
                                .string();
    succeed({"export", run, "layout"});
    succeed({"import", "layout", "--out", "taken"});
  }
};

TEST_CASE("windows may be longer than those of the training, as far as positions reach") {
  const Bench bench;
  const auto measured = [&](const std::string& run, const std::string& context) {
    return bench.headlab({"eval", run, "--text", "text.txt", "--context", context, "--json"});
  };
  const std::string far = bench.train({"model.position=rope"}), learned = bench.train();
  const Outcome longer = measured(far, "32");
  CHECK(longer.code == 0);
  CHECK_THAT(longer.err, Contains("windows of 32 tokens, of which the model was trained on 8"));
  CHECK_THAT(measured(far, "8").err, !Contains("windows of"));
  check_refusal(measured(learned, "9"), 2, {"--context 9", "at most 8 tokens"});
}

TEST_CASE("commands measure an imported model on a text, in windows of it") {
  const Imported& bench = Imported::instance();
  const std::vector<Arguments> commands{{"eval", "taken"},
                                        {"ablate", "taken"},
                                        {"analyze", "taken"},
                                        {"prune", "taken", "--heads", "0:1"},
                                        {"convert", "taken", "--to", "gated"}};
  for (const auto& command : commands) {
    INFO(command[0]);
    check_refusal(bench.headlab(command), 2, {"imported", "--data FILE", "--text TEXT"});
    const auto with = [&](const Arguments& more) {
      Arguments all = command;
      all.insert(all.end(), more.begin(), more.end());
      return all;
    };
    const auto windows = (fs::file_size(bench / "text.txt") - 1) / 4;
    CHECK(bench.succeed(with({"--data", "text.txt", "--context", "4"})).at("examples") == windows);
    // Of what the commands share one is asked.
    if (command[0] != "eval") continue;
    bench.succeed(with({"--text", kText}));
    bench.succeed(with({"--text", "text.txt", "--context", "8"}));
    bench.succeed(with({"--text", kText, "--context", "17"}));  // rope ends nowhere
    check_refusal(bench.headlab(with({"--text", kText, "--data", "text.txt"})), 2, {"--text"});
  }
}

TEST_CASE("a text that a command is given has no mark of byte order, and is no other format") {
  const Imported& bench = Imported::instance();
  const auto text = read_bytes(bench / "text.txt");
  write_bytes(bench / "marked.txt", "\xEF\xBB\xBF" + text);
  write_bytes(bench / "wide.txt", "\xFF\xFE" + text);
  for (const char* option : {"--data", "--text"}) {
    INFO(option);
    const auto of = [&](const char* file) {
      return bench.succeed({"eval", "taken", option, file});
    };
    CHECK(of("marked.txt").at("loss") == of("text.txt").at("loss"));
    check_refusal(bench.headlab({"eval", "taken", option, "wide.txt"}), 3,
                  {"wide.txt: is text in UTF-16", "iconv -f UTF-16 -t UTF-8"});
  }
}

TEST_CASE("who trains on the syntax of another format is told so, and what takes the text out") {
  const Bench bench;
  std::string jsonl, csv = "id,text\n", pretty = "[\n";
  for (int n = 0; n < 60; ++n) {
    jsonl += R"({"id": 1, "story": "The fox naps."})"
             "\n";
    csv += "1,\"The fox, it naps.\"\n";
    pretty += R"(  {"text": "The fox naps."},)"
              "\n";
  }
  const auto told = [&](const std::string& name, const std::string& text, const char* kind) {
    write_bytes(bench / name, text);
    const auto data = std::string("data={kind: ") + kind + ", path: " + name + ", context: 8}";
    const auto outcome = bench.headlab({"run", "tiny.yaml", "--dry-run", data});
    INFO(outcome.err);
    CHECK(outcome.code == 0);
    return outcome.err;
  };
  using Catch::Contains;
  for (const char* kind : {"char", "words", "bytes"}) {
    CHECK_THAT(told("a.txt", jsonl, kind),
               Contains("is JSON lines") && Contains("jq -r '.[\"story\"]'"));
    CHECK_THAT(told("f.txt", read_bytes(bench / "text.txt"), kind), !Contains("warning"));
  }
  CHECK_THAT(told("b.txt", csv, "char"), Contains("is CSV") && Contains("['text']"));
  CHECK_THAT(told("c.txt", pretty, "words"), Contains("is JSON:"));
  CHECK_THAT(told("d.csv", "a;b\n" + csv, "bytes"), Contains("is CSV"));
  CHECK_THAT(told("e.html", "<!DOCTYPE html>\n" + csv, "char"), Contains("is XML or HTML"));
  CHECK_THAT(told("g.parquet", "PAR1\x15\x04" + jsonl, "bytes"),
             Contains("is a Parquet file: its bytes are taken as they are"));
  CHECK_THAT(told("h.gz", "\x1F\x8B\x08" + jsonl, "bytes"), Contains("gunzip -c"));
}

TEST_CASE("of a text that fills no further window it is said what was measured") {
  const Imported& bench = Imported::instance();
  const auto whole = bench.succeed({"eval", "taken", "--text", kText}).at("split_tokens");
  const int64_t N = whole.get<int64_t>(), used = (N - 1) / 5 * 5;
  REQUIRE(used < N - 1);
  const auto said = fmt::format("first {} of {} tokens", used, N);
  const std::vector<Arguments> commands{{"eval", "taken"},
                                        {"ablate", "taken"},
                                        {"prune", "taken", "--heads", "0:1"},
                                        {"convert", "taken", "--to", "gated"}};
  for (auto command : commands) {
    INFO(command[0]);
    command.insert(command.end(), {"--text", kText, "--context", "5"});
    const auto outcome = bench.headlab(command);
    CHECK_THAT(outcome.out, Catch::Contains(said));
    CHECK(outcome.out.find("whole split") == outcome.out.npos);
    CHECK(bench.succeed(command).at("whole_split") == false);
  }
}

TEST_CASE("an imported model is tuned on the file that --data names") {
  const Imported& bench = Imported::instance();
  const Json pruned = bench.succeed({"prune", "taken", "--heads", "0:1", "--tune", "3", "--data",
                                     "text.txt", "--context", "8", "--out", "left"});
  CHECK(pruned.at("rounds").size() == 2);
  CHECK(bench.succeed({"eval", "left"}).at("split") == "val");  // its data are that text now
  bench.succeed({"convert", "taken", "--to", "gated", "--tune", "2", "--data", "text.txt",
                 "--context", "8", "--out", "gated"});
  check_refusal(bench.headlab({"prune", "taken", "--heads", "0:1", "--tune", "3", "--text", kText,
                               "--out", "other"}),
                2, {"--data FILE"});
}

TEST_CASE("a text in the tokens of a run trains on from its weights") {
  const Imported& bench = Imported::instance();
  write_bytes(bench / "on.yaml",
              "init: taken\ndata: {kind: text, path: text.txt, context: 8}\n"
              "model: {layers: 1, d_model: 16, heads: 2, position: rope, norm: rms, mlp: swiglu}\n"
              "train: {steps: 2, batch: 2, eval_batches: 1}\n");
  const Outcome outcome = bench.headlab({"run", "on.yaml"});
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  const std::string run = lines_of(outcome.out).at(0);
  CHECK(bench.succeed({"eval", run}).at("loss") < 2.5);  // untrained: 3.3
  CHECK(bench.succeed({"generate", run, "--prompt", "The quick", "--tokens", "3"})
            .get<std::string>()
            .starts_with("The quick"));
  write_bytes(bench / "alone.yaml", replaced(read_bytes(bench / "on.yaml"), "init: taken\n", ""));
  check_refusal(bench.headlab({"run", "alone.yaml"}), 2, {"data.tokenizer: is needed"});
  check_refusal(bench.headlab({"run", "on.yaml", "data.tokenizer=nowhere"}), 2, {"nowhere"});
  check_refusal(bench.headlab({"run", "on.yaml", "data.objective=masked"}), 2, {"masked"});
}

TEST_CASE("generate stops at a token that ends a text, or goes on") {
  const Imported& bench = Imported::instance();
  auto config = json_of(bench / "layout/config.json");
  const Json taken = json_of(bench / "taken/data.json");
  config["eos_token_id"] = taken.at("tokenizer").at("characters").get<std::string>().find(' ');
  write_bytes(bench / "layout/config.json", config.dump());
  bench.succeed({"import", "layout", "--out", "again"});
  const Arguments words{"generate",      "again", "--prompt", "The qui",
                        "--temperature", "0",     "--tokens", "12"};
  const auto stopped = bench.succeed(words).get<std::string>();
  CHECK(stopped.find(' ', 4) == std::string::npos);
  Arguments on = words;
  on.emplace_back("--no-stop");
  const auto all = bench.succeed(on).get<std::string>();
  CHECK(all.size() == 7 + 12 + 1);
  CHECK(all.starts_with(stopped.substr(0, stopped.size() - 1)));
}

// BERT of the golden files without its head, and words of its own.
void write_encoder(const Bench& bench) {
  const fs::path golden = kGolden / "models/bert_mlm";
  fs::create_directory(bench / "encoder");
  fs::copy_file(golden / "config.json", bench / "encoder/config.json");
  const SafetensorsFile whole(golden / "model.safetensors");
  std::vector<TensorEntry> kept;
  for (const auto& entry : whole.entries())
    if (!entry.name.starts_with("cls.")) kept.push_back(entry);
  write_safetensors(bench / "encoder/model.safetensors", std::move(kept));
  std::string words = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nfox\ndog\nnaps\n.\n";
  for (int64_t n = 10; n < 97; ++n) words += "w" + std::to_string(n) + "\n";
  write_bytes(bench / "encoder/vocab.txt", words);
}

TEST_CASE("a model that only embeds is measured by how far sentences move") {
  const Bench bench;
  write_encoder(bench);
  REQUIRE(bench.headlab({"import", "encoder", "--out", "taken"}).code == 0);
  write_bytes(bench / "lines.txt", "The fox naps.\n\nThe dog.\nA dog, the fox; the dog naps.\n");
  check_refusal(bench.headlab({"prune", "taken", "--heads", "0:1"}), 2, {"--text TEXT"});
  check_refusal(bench.headlab({"eval", "taken", "--text", "lines.txt"}), 2, {"embeds"});
  check_refusal(
      bench.headlab({"run", "tiny.yaml", "model={kind: encoder, head: embedding}",
                     "data={kind: words, path: text.txt, objective: masked, context: 8}"}),
      2, {"model.head", "no predictions"});
  const auto pruned = bench.headlab({"prune", "taken", "--fraction", "0.5", "--slice", "--text",
                                     "lines.txt", "--out", "cut", "--json"});
  INFO(pruned.err);
  REQUIRE(pruned.code == 0);
  const Json report = Json::parse(pruned.out);
  CHECK(report.at("examples") == 3);
  CHECK(report.at("rounds").at(0).at("distance") == 0);
  CHECK(report.at("rounds").at(1).at("distance") > 1e-6);
  CHECK(report.at("distance_delta") == report.at("rounds").at(1).at("distance"));
  CHECK(report.at("kl").is_null());
  const auto ablated = bench.headlab({"ablate", "taken", "--text", "lines.txt", "--json"});
  INFO(ablated.err);
  REQUIRE(ablated.code == 0);
  // It has no logits, and no change can bring embeddings nearer to where they are.
  std::string many;
  for (int n = 0; n < 12; ++n) many += n % 2 == 0 ? "The fox naps.\n" : "A dog, the fox.\n";
  write_bytes(bench / "many.txt", many);
  const auto words_of = [&](Arguments arguments) {
    arguments.insert(arguments.end(), {"--text", "many.txt"});
    const auto outcome = bench.headlab(arguments);
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    return outcome.out;
  };
  const auto of_heads = words_of({"ablate", "taken"});
  CHECK(of_heads.find("  *  ") == of_heads.npos);
  CHECK_THAT(of_heads, Catch::Contains("none: any change raises the distance of embeddings"));
  const auto ablated_many = Json::parse(words_of({"ablate", "taken", "--json"}));
  for (const auto& p : ablated_many.at("p_holm")) CHECK(p.is_null());
  const auto of_cut = words_of({"prune", "taken", "--heads", "0:1"});
  CHECK_THAT(of_cut, Catch::Contains("logits: KL -\n") && Catch::Contains("masked: logits -, ") &&
                         Catch::Contains("(p -, 12 examples)"));
  CHECK(of_cut.find("within") == of_cut.npos);
  const auto weighed =
      bench.headlab({"analyze", "taken", "--importance", "--text", "lines.txt", "--json"});
  REQUIRE(weighed.code == 0);
  const auto weights = Json::parse(weighed.out).at("statistics").at("importance_paper");
  for (const auto& layer : weights)
    for (const auto& value : layer) CHECK(value.get<double>() > 0);
  const auto words = std::string("the fox naps. ") + "the fox naps. " + "the fox naps. " +
                     "the fox naps. the fox naps. the fox naps. the fox naps. the fox naps. "
                     "the fox naps. the fox naps. the fox naps. the fox naps.";
  check_refusal(bench.headlab({"prune", "taken", "--heads", "0:1", "--text", words}), 3,
                {"--text:1", "context"});
  REQUIRE(bench.headlab({"export", "cut", "out"}).code == 0);
  CHECK(json_of(bench / "out/config.json").at("architectures").at(0) == "BertModel");
}

}  // namespace
}  // namespace headlab::test_command_given_text
