// The commands that use a run, judge files of numbers, or tell of the program itself.
#include <cmath>
#include <cstring>

#include "core/safetensors.h"
#include "tests/command_testing.h"

namespace headlab::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

const std::string kCase = (kGolden / "mha/llama_gqa.safetensors").string();

TensorEntry integers(const std::string& name, const std::vector<int64_t>& shape,
                     const std::vector<int64_t>& values) {
  return {name, Dtype::kI64, shape, reinterpret_cast<const std::byte*>(values.data()),
          values.size() * sizeof(int64_t)};
}

template <class T>
std::vector<T> numbers(const SafetensorsFile& file, const std::string& name,
                       const std::vector<int64_t>& shape) {
  INFO(name);
  const TensorEntry* entry = file.find(name);
  REQUIRE(entry != nullptr);
  REQUIRE(entry->dtype == (sizeof(T) == 4 ? Dtype::kF32 : Dtype::kF64));
  CHECK(entry->shape == shape);
  std::vector<T> values(entry->bytes / sizeof(T));
  std::memcpy(values.data(), entry->data, entry->bytes);
  return values;
}

std::vector<float> floats(const SafetensorsFile& file, const std::string& name,
                          const std::vector<int64_t>& shape) {
  return numbers<float>(file, name, shape);
}

std::set<std::string> names_of(const SafetensorsFile& file) {
  std::set<std::string> names;
  for (const auto& entry : file.entries()) names.insert(entry.name);
  return names;
}

// The case with the sign of one number of one tensor turned, the largest.
void write_perturbed_case(const fs::path& path, const std::string& name) {
  const SafetensorsFile original(kCase);
  auto values = floats(original, name, original.find(name)->shape);
  auto& largest = *std::max_element(values.begin(), values.end(),
                                    [](float a, float b) { return std::abs(a) < std::abs(b); });
  largest = -largest;
  auto entries = original.entries();
  for (auto& entry : entries)
    if (entry.name == name) entry.data = reinterpret_cast<const std::byte*>(values.data());
  write_safetensors(path, entries, original.metadata());
}

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  const auto lines = lines_of(headlab({"--help"}).out);
  auto line = std::find(lines.begin(), lines.end(), "Subcommands:");
  REQUIRE(line != lines.end());
  while (++line != lines.end() && line->starts_with("  "))
    names.push_back(line->substr(2, line->find(' ', 2) - 2));
  return names;
}

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

TEST_CASE("a prompt that the model cannot read is refused and its character named") {
  const Bench bench;
  const std::string run = bench.train().string();
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
  const Bench bench;
  const fs::path run = bench.train();
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

TEST_CASE("eval refuses a split that is unknown or that the data does not have") {
  const Bench bench;
  const std::string run = bench.train().string();
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
  const Bench bench;
  const std::string run = bench.train().string();
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
  check({integers("in.id", {1, 2}, wild)}, "in.ids is missing");
  check({integers("in.ids", {3, 3}, ids), integers("in.targets", {1, 9}, ids)}, "in.targets");
  check({integers("in.ids", {1, 9}, ids)}, "8");  // the context
}

TEST_CASE("layer passes a golden case and reports every tensor") {
  const Outcome text = headlab({"layer", kCase});
  CHECK(text.code == 0);
  CHECK(text.err.empty());
  CHECK(lines_of(text.out).size() == 7);
  for (const std::string& line : lines_of(text.out)) CHECK(line.ends_with(" pass"));

  const Outcome outcome = headlab({"layer", kCase, "--json", "--time", "3"});
  CHECK(outcome.code == 0);
  CHECK(lines_of(outcome.out).size() == 1);
  const Json object = Json::parse(outcome.out);
  CHECK(object.at("case") == kCase);
  CHECK(object.at("pass") == true);
  std::set<std::string> names;
  for (const Json& tensor : object.at("tensors")) {
    names.insert(tensor.at("name").get<std::string>());
    CHECK(tensor.at("pass") == true);
    CHECK(tensor.at("error").get<double>() <= tensor.at("bound").get<double>());
  }
  CHECK(names == std::set<std::string>{"grad.w.k.weight", "grad.w.o.weight", "grad.w.q.weight",
                                       "grad.w.v.weight", "grad.x", "out.attention", "out.y"});
  for (const std::string key : {"forward_ms", "forward_backward_ms"}) {
    CHECK(object.at(key).at("min").get<double>() > 0);
    CHECK(object.at(key).at("min").get<double>() <= object.at(key).at("median").get<double>());
  }
}

TEST_CASE("layer runs forward alone and by every path that is asked for") {
  const Json forward =
      Json::parse(headlab({"layer", kCase, "--json", "--time", "1", "--forward-only"}).out);
  CHECK(forward.at("pass") == true);
  CHECK(forward.at("tensors").size() == 2);
  CHECK(forward.contains("forward_ms"));
  CHECK_FALSE(forward.contains("forward_backward_ms"));
  CHECK_FALSE(Json::parse(headlab({"layer", kCase, "--json"}).out).contains("forward_ms"));
  for (const std::string backend : {"auto", "eager", "sdpa"}) {
    INFO(backend);
    CHECK(headlab({"layer", kCase, "--backend", backend, "--threads", "1"}).code == 0);
  }
}

TEST_CASE("layer fails a case whose number is wrong and says by how much") {
  const Bench bench;
  for (const std::string name : {"out.y", "out.attention", "grad.w.q.weight"}) {
    INFO(name);
    write_perturbed_case(bench / "wrong.safetensors", name);
    for (const std::string command : {"layer", "check"}) {
      const Outcome outcome = bench.headlab({command, "wrong.safetensors", "--json"});
      CHECK(outcome.code == 1);
      const Json object = Json::parse(outcome.out);
      CHECK(object.at("pass") == false);
      for (const Json& tensor : object.at("tensors")) {
        CHECK(tensor.at("pass") == (tensor.at("name") != name));
        if (tensor.at("name") == name)
          CHECK(tensor.at("error").get<double>() > tensor.at("bound").get<double>());
      }
    }
    const Outcome text = bench.headlab({"layer", "wrong.safetensors"});
    CHECK(text.code == 1);
    CHECK_THAT(text.out, Contains(" FAIL\n") && Contains(" pass\n"));
  }
  CHECK(bench.headlab({"layer", "wrong.safetensors", "--forward-only"}).code == 0);
}

TEST_CASE("layer writes everything it computed") {
  const Bench bench;
  CHECK(bench.headlab({"layer", kCase, "--out", "out.safetensors"}).code == 0);
  CHECK(names_of(SafetensorsFile(bench / "out.safetensors")) ==
        std::set<std::string>{"grad.w.k.weight", "grad.w.o.weight", "grad.w.q.weight",
                              "grad.w.v.weight", "grad.x", "out.attention", "out.y"});
  CHECK(bench.headlab({"layer", kCase, "--out", "out.safetensors", "--forward-only"}).code == 0);
  CHECK(names_of(SafetensorsFile(bench / "out.safetensors")) ==
        std::set<std::string>{"out.attention", "out.y"});
  CHECK(bench.headlab({"layer", kCase, "--out", "out.safetensors", "--stats"}).code == 0);
  const SafetensorsFile file(bench / "out.safetensors");
  for (const double entropy : numbers<double>(file, "stat.entropy", {6})) {
    CHECK(entropy > 0);
    CHECK(entropy < std::log(17.0));
  }
  for (const double weight : numbers<double>(file, "stat.max_weight", {6})) CHECK(weight <= 1);
}

TEST_CASE("a case without expected numbers passes and is computed") {
  const Bench bench;
  const SafetensorsFile original(kCase);
  std::vector<TensorEntry> given;
  for (const auto& entry : original.entries())
    if (!entry.name.starts_with("out.") && !entry.name.starts_with("grad.")) given.push_back(entry);
  write_safetensors(bench / "given.safetensors", given, original.metadata());
  const Outcome outcome =
      bench.headlab({"layer", "given.safetensors", "--out", "out.safetensors", "--json"});
  CHECK(outcome.code == 0);
  CHECK(Json::parse(outcome.out).at("tensors").empty());
  const SafetensorsFile computed(bench / "out.safetensors");
  const auto y = floats(computed, "out.y", {2, 17, 24});
  const auto expected = floats(original, "out.y", {2, 17, 24});
  for (size_t n = 0; n < y.size(); ++n) CHECK(y[n] == Approx(expected[n]).margin(1e-4));
  CHECK(computed.find("grad.w.k.weight") != nullptr);
}

TEST_CASE("check judges layers and trainings together") {
  const Bench bench;
  const std::string training = (kGolden / "nanogpt/train.safetensors").string();
  const Outcome both = bench.headlab({"check", kCase, training, "--json"});
  CHECK(both.code == 0);
  const Json objects = Json::parse(both.out);
  REQUIRE(objects.size() == 2);
  CHECK(objects[0].at("case") == kCase);
  CHECK(objects[1].at("case") == training);
  CHECK(objects[1].at("pass") == true);

  write_perturbed_case(bench / "wrong.safetensors", "out.y");
  CHECK(bench.headlab({"check", "wrong.safetensors", kCase}).code == 1);
  CHECK(bench.headlab({"check", kCase, "wrong.safetensors"}).code == 1);
  CHECK(bench.headlab({"check", training, "--out", "out.safetensors"}).code == 0);
  CHECK(SafetensorsFile(bench / "out.safetensors").find("out.losses") != nullptr);
  check_refusal(bench.headlab({"check", kCase, training, "--out", "x"}), 2, {"takes one file"});
}

TEST_CASE("list and describe tell of every kind of heads") {
  const Json kinds = Json::parse(headlab({"list", "--json"}).out);
  const auto lines = lines_of(headlab({"list"}).out);
  CHECK(lines.size() == kinds.size());
  CHECK(kinds.size() == build::kVariantStems.size());
  const std::string table = headlab({"describe", "--table"}).out;
  for (const auto& [kind, summary] : kinds.items()) {
    INFO(kind);
    const auto line = std::find_if(lines.begin(), lines.end(), [&](const std::string& text) {
      return text.starts_with(kind + " ");
    });
    REQUIRE(line != lines.end());
    CHECK_THAT(*line, Contains(summary.get<std::string>()));
    CHECK_THAT(table, Contains("| `" + kind + "` | " + summary.get<std::string>() + " | "));

    const Json object = Json::parse(headlab({"describe", kind, "--json"}).out);
    CHECK(object.at("kind") == kind);
    CHECK(object.at("summary") == summary);
    CHECK_FALSE(object.at("parameters").empty());
    CHECK(object.at("traits").is_object());
    const std::string text = headlab({"describe", kind}).out;
    for (const Json& option : object.at("options")) {
      for (const std::string key : {"name", "type", "default", "limits", "help"})
        CHECK(option.contains(key));
      CHECK_THAT(text, Contains(option.at("name").get<std::string>()));
    }
  }
}

TEST_CASE("version names what the program is built on") {
  const Json object = Json::parse(headlab({"version", "--json"}).out);
  CHECK(object.at("headlab") == build::kVersion);
  for (const std::string key : {"torch", "hdf5", "compiler", "build"})
    CHECK_FALSE(object.at(key).get<std::string>().empty());
  CHECK(object.at("cuda").is_boolean());
  CHECK(headlab({"--version"}).out == std::string(build::kVersion) + "\n");
}

TEST_CASE("help of every command exits 0 and shows an example") {
  const auto names = command_names();
  for (const std::string name : {"run", "config", "eval", "generate", "forward", "layer", "check",
                                 "inspect", "repair", "list", "describe", "completion", "version"})
    CHECK(std::count(names.begin(), names.end(), name) == 1);
  for (const std::string& name : names) {
    INFO(name);
    const Outcome outcome = headlab({name, "--help"});
    CHECK(outcome.code == 0);
    CHECK(outcome.err.empty());
    CHECK_THAT(outcome.out, Contains("Usage: headlab " + name) && Contains("\nExample:\n  ") &&
                                Contains("headlab " + name));
  }
}

TEST_CASE("completion scripts parse and complete commands and options") {
  const Scratch scratch;
  const std::string script = (scratch / "headlab.bash").string();
  write_bytes(script, headlab({"completion", "bash"}).out);
  const auto complete = [&](const std::string& words, int at) {
    const Outcome outcome =
        Process({.arguments = {"-c", "source " + script + "; COMP_WORDS=(" + words +
                                         "); COMP_CWORD=" + std::to_string(at) +
                                         "; _headlab; echo ${COMPREPLY[@]}"},
                 .program = "bash"})
            .end();
    CHECK(outcome.err.empty());
    return outcome.out;
  };
  CHECK(complete("headlab ru", 1) == "run\n");
  CHECK(complete("headlab run --dr", 2) == "--dry-run\n");
  CHECK(complete("headlab layer --f", 2) == "--forward-only\n");
  CHECK_THAT(complete("headlab ''", 1), Contains("generate") && Contains("version"));

  CHECK_THAT(headlab({"completion", "zsh"}).out, StartsWith("autoload") && Contains("_headlab"));
  const std::string fish = headlab({"completion", "fish"}).out;
  for (const std::string& name : command_names())
    CHECK_THAT(fish, Contains("__fish_use_subcommand -a " + name + " "));
}

TEST_CASE("config prints what a file resolves to and its shortest form and the schema") {
  const Bench bench;
  const Outcome resolved = bench.headlab({"config", "tiny.yaml", "model.layers=3"});
  CHECK(resolved.code == 0);
  CHECK_THAT(resolved.out, Contains("layers: 3") && Contains("schedule: cosine") &&
                               Contains((bench / "text.txt").string()));
  write_bytes(bench / "again.yaml", resolved.out);
  CHECK(bench.headlab({"config", "again.yaml"}).out == resolved.out);

  const std::string minimal =
      bench.headlab({"config", "tiny.yaml", "model.layers=3", "--minimal"}).out;
  CHECK_THAT(minimal, Contains("layers: 3") && !Contains("schedule"));
  CHECK(minimal.size() < resolved.out.size() / 2);
  write_bytes(bench / "short.yaml", minimal);
  CHECK(bench.headlab({"config", "short.yaml"}).out == resolved.out);

  const Json schema = Json::parse(headlab({"config", "--schema"}).out);
  CHECK(schema.at("type") == "object");
  for (const std::string key : {"name", "seed", "data", "model", "train", "log", "extends"})
    CHECK(schema.at("properties").contains(key));
  CHECK_FALSE(schema.value("additionalProperties", true));
}

TEST_CASE("inspect and repair tell what is in the log of a finished run") {
  const Bench bench;
  const fs::path run = bench.train();
  const auto files = snapshot(run);
  const Json log = Json::parse(headlab({"inspect", run.string(), "--json"}).out);
  CHECK(log.at("status") == "finished");
  CHECK(log.at("needs_repair") == false);
  CHECK(log.at("title") == "tiny");
  std::map<std::string, int64_t> records;
  for (const Json& group : log.at("groups"))
    if (group.contains("records")) records[group.at("path")] = group.at("records");
  CHECK(records["/scalars"] == 6);
  CHECK(records["/eval"] == 3);
  CHECK(records["/heads/self"] == 3);
  CHECK_THAT(headlab({"inspect", (run / "log.h5").string()}).out,
             Contains("/scalars: 6 records, the last of step 5"));
  const Outcome repair = headlab({"repair", run.string()});
  CHECK(repair.code == 0);
  CHECK_THAT(repair.out, Contains("log.h5: nothing to repair"));
  CHECK((snapshot(run) == files));
}

TEST_CASE("validate says what a run would cost", "[validate]") {
  const std::string config = (kProject / "configs/char_mha.yaml").string();
  const Outcome outcome = headlab({"validate", config, "--json"});
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(lines_of(outcome.out).size() == 1);
  const Json object = Json::parse(outcome.out);
  CHECK(object.at("parameters") == 804096);
  // Twice the weights that multiply a token (all but the 64 x 128 positions and the 9 norms of
  // 128), and for scores and values 2 T D each a layer, causal halved.
  const int64_t multiplied = 804096 - 64 * 128 - 9 * 128;
  CHECK(object.at("flops_per_token").get<double>() ==
        Approx(2.0 * multiplied + 4 * 2 * 64 * 128).epsilon(0.02));
  CHECK(object.at("attention_bytes").get<int64_t>() > 0);
  CHECK(headlab({"validate", config}).code == 0);
}

TEST_CASE("validate refuses what run would refuse", "[validate]") {
  const Bench bench;
  check_refusal(bench.headlab({"validate", "tiny.yaml", "model.heads=3"}), 2, {"model.heads"});
  check_refusal(bench.headlab({"validate", "tiny.yaml", "data.path=no_such.txt"}), 3,
                {"no_such.txt"});
  check_refusal(bench.headlab({"validate", "tiny.yaml", "log.attention.max_bytes=10"}), 2,
                {"log.attention", "max_bytes"});
  CHECK(names_in(bench.path()) == std::set<std::string>{"text.txt", "tiny.yaml"});
}

}  // namespace
}  // namespace headlab::testing
