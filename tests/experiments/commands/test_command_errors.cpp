// What the program says of a user's mistakes: one line with place and remedy, the exit code that
// scripts rely on, and nothing left behind.
#include "tests/command_testing.h"

namespace headlab::testing::test_command_errors {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

struct WrongConfig {
  std::string old, fresh;  // in kTinyConfig
  int code;
  std::vector<std::string> said;
};

TEST_CASE("a config that is wrong is refused in one line with its place and the remedy") {
  const auto wrong = GENERATE(values<WrongConfig>({
      {"d_model: 16",
       "dmodel: 16",
       2,
       {"bad.yaml:4:35: model.dmodel: unknown key; did you mean 'd_model'?"}},
      {"seed: 7", "sead: 7", 2, {"bad.yaml:2:1: sead: unknown key; did you mean 'seed'?"}},
      {"seed: 7", "seed: 7\nseed: 8", 2, {"bad.yaml:3:1: seed: duplicate key, first on line 2"}},
      {"steps: 5", "steps: five", 2, {"bad.yaml:6:10: train.steps: must be an integer", "five"}},
      {"steps: 5", "steps: 0", 2, {"bad.yaml:6:10: train.steps: must be at least 1"}},
      {"steps: 5", "steps: 1k", 2, {"bad.yaml:6:10: train.steps: must be an integer", "1k"}},
      {"name: tiny", "name: [tiny", 2, {"bad.yaml:1:7: name: "}},
      {"heads: 2", "heads: 3", 2, {"bad.yaml:4:", "model.heads", "3", "16", "choose a divisor"}},
      {"heads: 2",
       "heads: 4, kv_heads: 3",
       2,
       {"bad.yaml:4:", "model.kv_heads", "3", "4", "choose a divisor"}},
      {"kind: mha",
       "kind: mah",
       2,
       {"bad.yaml:4:", "model.attention.kind: must be one of ", "did you mean 'mha'?"}},
      {"kind: decoder",
       "kind: decodr",
       2,
       {"bad.yaml:4:15: model.kind: must be one of ", "did you mean 'decoder'?"}},
      {"kind: char",
       "kind: chars",
       2,
       {"bad.yaml:3:14: data.kind: must be one of ", "did you mean 'char'?"}},
      {"path: text.txt, ", "", 2, {"bad.yaml:3:", "data.path: is needed"}},
      {"path: text.txt", "path: no_such.txt", 3, {"/no_such.txt: ", "No such file or directory"}},
      {"path: text.txt", "path: empty.txt", 3, {"/empty.txt: is empty", "data.path"}},
      {"path: text.txt",
       "path: short.txt",
       3,
       {"/short.txt: ", "context + 1 = 9", "use a smaller context or a longer text"}},
      {"path: text.txt", "path: .", 3, {"is not a regular file"}},
  }));
  const Bench bench;
  write_bytes(bench / "empty.txt", "");
  write_bytes(bench / "short.txt", "too few");
  write_bytes(bench / "bad.yaml", replaced(kTinyConfig, wrong.old, wrong.fresh));
  INFO(wrong.fresh);
  check_refusal(bench.headlab({"run", "bad.yaml", "--out", "out"}), wrong.code, wrong.said);
  CHECK_FALSE(fs::exists(bench / "out"));
}

TEST_CASE("all unknown keys of a config are named at once and each on a line") {
  const Bench bench;
  write_bytes(bench / "bad.yaml",
              replaced(replaced(kTinyConfig, "batch:", "bach:"), "warmup:", "warm_up:"));
  const Outcome outcome = bench.headlab({"run", "bad.yaml", "--out", "out"});
  CHECK(outcome.code == 2);
  CHECK(lines_of(outcome.err).size() == 2);
  CHECK_THAT(outcome.err, Contains("bad.yaml:7:3: train.bach: unknown key; did you mean 'batch'?"));
  CHECK_THAT(outcome.err,
             Contains("bad.yaml:8:3: train.warm_up: unknown key; did you mean 'warmup'?"));
}

TEST_CASE("an override that is wrong is refused as a line of the config is") {
  const Bench bench;
  const auto check = [&](const std::string& override_text, const std::string& said) {
    INFO(override_text);
    check_refusal(bench.headlab({"run", "tiny.yaml", "--out", "out", override_text}), 2, {said});
    CHECK_FALSE(fs::exists(bench / "out"));
  };
  check("model.layer=2", "override: model.layer: unknown key; did you mean 'layers'?");
  check("train.lr=high", "override: train.lr: must be a number, is 'high'");
  check("train.lr", "override: train.lr: must be written a.b.c=value");
  check("=3", "override: has an empty key");
}

TEST_CASE("a config file that is missing or extends itself is named") {
  const Bench bench;
  check_refusal(bench.headlab({"run", "no_such.yaml", "--out", "out"}), 2,
                {"no_such.yaml: cannot open: No such file or directory"});
  write_bytes(bench / "a.yaml", "extends: b.yaml\n");
  write_bytes(bench / "b.yaml", "extends: a.yaml\n");
  check_refusal(bench.headlab({"run", "a.yaml", "--out", "out"}), 2,
                {"b.yaml:1:10: extends: ", "a.yaml -> b.yaml -> a.yaml"});
  write_bytes(bench / "a.yaml", "extends: no_such.yaml\n");
  check_refusal(bench.headlab({"run", "a.yaml", "--out", "out"}), 2,
                {"a.yaml:1:10: extends: no_such.yaml: cannot open"});
  CHECK_FALSE(fs::exists(bench / "out"));
}

TEST_CASE("output that cannot be written exits 4 before anything is trained") {
  const Bench bench;
  write_bytes(bench / "in_the_way", "kept");
  for (const std::string out : {"/proc/headlab", "in_the_way", "in_the_way/deeper"}) {
    INFO(out);
    check_refusal(bench.headlab({"run", "tiny.yaml", "--out", out}), 4,
                  {out + "/tiny/", ": cannot be made: ", "; choose another place"});
  }
  CHECK(read_bytes(bench / "in_the_way") == "kept");
  CHECK(names_in(bench.path()) == std::set<std::string>{"in_the_way", "text.txt", "tiny.yaml"});
}

TEST_CASE("a directory that holds something else than a run is left alone") {
  const Bench bench;
  const fs::path run = bench.train();
  fs::remove_all(run);
  fs::create_directories(run);
  write_bytes(run / "notes.txt", "mine");
  check_refusal(bench.headlab({"run", "tiny.yaml"}), 4,
                {run.string() + ": is no run", "notes.txt", "choose another place"});
  CHECK(names_in(run) == std::set<std::string>{"notes.txt"});
}

TEST_CASE("an unknown command or option is refused in one line with the nearest name") {
  const Bench bench;
  check_refusal(bench.headlab({"rnu", "tiny.yaml"}), 2, {"rnu", "did you mean 'run'?"});
  check_refusal(bench.headlab({"run", "tiny.yaml", "--oot", "out"}), 2,
                {"--oot", "did you mean '--out'?"});
  check_refusal(bench.headlab({"layer", "x", "--devise=cpu"}), 2,
                {"--devise", "did you mean '--device'?"});
  check_refusal(bench.headlab({"version", "--jsn"}), 2, {"--jsn", "did you mean '--json'?"});
  check_refusal(bench.headlab({"describe", "mah"}), 2, {"'mah'", "did you mean 'mha'?"});
  check_refusal(bench.headlab({}), 2, {"--help"});
  check_refusal(bench.headlab({"run"}), 2, {"config", "--help"});
}

TEST_CASE("an option with a value that it cannot have is refused in one readable line") {
  const Bench bench;
  const auto check = [&](const Arguments& arguments, const std::string& option) {
    const Outcome outcome = bench.headlab(arguments);
    check_refusal(outcome, 2, {option});
    CHECK(outcome.err.size() < 160);
  };
  check({"generate", ".", "--prompt", "a", "--tokens", "1k"}, "--tokens");
  check({"generate", ".", "--prompt", "a", "--tokens", "-1"}, "--tokens");
  check({"generate", ".", "--prompt", "a", "--temperature", "-0.5"}, "--temperature");
  check({"generate", ".", "--prompt", "a", "--temperature", "nan"}, "--temperature");
  check({"layer", "x", "--time", "0"}, "--time");
  check({"layer", "x", "--threads", "0"}, "--threads");
  check({"layer", "x", "--backend", "magic"}, "--backend");
  check({"completion", "tcsh"}, "shell");
  for (const std::string device :
       {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:0x", "cudax", "CPU", "cuda:99999999999"})
    check({"run", "tiny.yaml", "--device", device},
          "--device " + device + ": must be auto, cpu, cuda or cuda:N");
  check({"run", "tiny.yaml", "--device", "cuda:0,1"}, "cuda:N, of one device");
  check({"layer", "x", "--threads", "100000"}, "--threads 100000: must be at most 1024");
  check({"generate", ".", "--prompt", "a", "--temperature", "1e300"}, "--temperature");
  check({"eval", ".", "--batch", "9223372036854775807"}, "--batch: must be at most 2147483647");
}

TEST_CASE("more threads than can be begun are refused, in the environment too") {
  const Bench bench;
  const auto outcome =
      Process({{"run", "tiny.yaml"}, bench.path(), {{"OMP_NUM_THREADS", "100000"}}}).end();
  check_refusal(outcome, 2, {"OMP_NUM_THREADS=100000: must be at most 1024"});
  check_refusal(bench.headlab({"run", "tiny.yaml", "train.threads=100000"}), 2, {"train.threads"});
}

TEST_CASE("an instruction set that nobody has is refused, one of this machine is kept by the run") {
  const Bench bench;
  const auto with = [&](const char* value) {
    return Process({{"run", "tiny.yaml", "--out", "out"}, bench.path(), {{"HEADLAB_ISA", value}}})
        .end();
  };
  check_refusal(with("sse9"), 2,
                {"HEADLAB_ISA=sse9: no such instruction set; there are avx512, avx2, default"});
  const auto done = with("default");
  REQUIRE(done.code == 0);
  const std::filesystem::path run = lines_of(done.out).at(0);
  CHECK(json_of(run / "manifest.json").at("isa") == "default");
}

TEST_CASE("a limit of time of any length is refused by a word") {
  const Bench bench;
  write_bytes(bench / "sweep.yaml", "base: tiny.yaml\ngrid: {seed: [1, 2]}\n");
  check_refusal(
      bench.headlab({"sweep", "sweep.yaml", "--emit", "slurm", "--time", std::string(50'000, '1')}),
      2, {"--time", "must be HH:MM:SS"});
}

TEST_CASE("numbers that no 32-bit float holds are refused where they stand") {
  const Bench bench;
  for (const std::string key : {"train.clip", "train.lr", "train.weight_decay", "train.eps",
                                "model.norm_eps", "model.attention.scale"}) {
    check_refusal(bench.headlab({"run", "tiny.yaml", key + "=1e300"}), 2,
                  {key + ": must be at most 3.4e38"});
    check_refusal(bench.headlab({"run", "tiny.yaml", key + "=1e-300"}), 2,
                  {key + ": must be 0 or at least 1.2e-38"});
  }
  CHECK_FALSE(fs::exists(bench / "runs"));
}

TEST_CASE("names that are not UTF-8 are refused where a run would keep them, printed elsewhere") {
  const Bench bench;
  const std::string bad = "bad\xff";
  check_refusal(bench.headlab({"run", "tiny.yaml", "--out", bad}), 4, {"its name is not UTF-8"});
  write_bytes(bench / "sweep.yaml", "base: tiny.yaml\ngrid: {seed: [1, 2]}\n");
  check_refusal(bench.headlab({"sweep", "sweep.yaml", "--out", bad}), 4, {"its name is not UTF-8"});
  CHECK_FALSE(fs::exists(bench / bad));
  fs::copy(bench / "text.txt", bench / (bad + ".txt"));
  CHECK(bench.headlab({"run", "tiny.yaml", "data.path=" + bad + ".txt"}).code == 2);
  CHECK(bench.headlab({"run", "tiny.yaml", "--init", bad}).code == 4);
  const fs::path run = bench.train();
  const Outcome eval = bench.headlab({"eval", run.string(), "--data", bad + ".txt", "--json"});
  CHECK(eval.code == 0);
  CHECK_THAT(Json::parse(eval.out).dump(), Contains("bad\uFFFD.txt"));
  const auto pruned = bench.headlab({"prune", run.string(), "--heads", "0:0", "--out", bad});
  CHECK(pruned.code == 4);
  CHECK_THAT(pruned.err, Contains("bad\uFFFD: cannot be made: its name is not UTF-8"));
  fs::create_directories(bench / bad);
  fs::copy(bench / "tiny.yaml", bench / (bad + "/tiny.yaml"));
  const Outcome inside =
      headlab({"run", "tiny.yaml", "data.path=" + (bench / "text.txt").string()}, bench / bad);
  check_refusal(inside, 4, {"its name is not UTF-8"});
  fs::rename(run, bench / (bad + "/run"));
  CHECK(bench.headlab({"eval", bad + "/run", "--json"}).code == 0);
}

TEST_CASE("describe of a command says where its description is") {
  for (const std::string command : {"compare", "sweep", "run", "prune"})
    check_refusal(headlab({"describe", command}), 2,
                  {"'" + command + "' is a command", command + " --help"});
}

TEST_CASE("a device that is not there exits 6 and says what is") {
  const Bench bench;
  const std::map<std::string, std::string> none{{"CUDA_VISIBLE_DEVICES", ""}};
  const std::string cases = (kGolden / "mha/worked_h2.safetensors").string();
  for (const Arguments& arguments :
       {Arguments{"run", "tiny.yaml", "--out", "out", "--device", "cuda"},
        Arguments{"run", "tiny.yaml", "--out", "out", "--device", "cuda:3"},
        Arguments{"layer", cases, "--device", "cuda"}}) {
    check_refusal(Process({arguments, bench.path(), none}).end(), 6,
                  {"--device cuda", "no CUDA device is available; use --device cpu"});
  }
  CHECK_FALSE(fs::exists(bench / "out"));
}

TEST_CASE("a case file that is cut short or missing or no case exits 3 and is named") {
  const Bench bench;
  const std::string whole = read_bytes(kGolden / "mha/llama_gqa.safetensors");
  write_bytes(bench / "cut.safetensors", whole.substr(0, whole.size() / 2));
  write_bytes(bench / "header.safetensors", whole.substr(0, 100));
  for (const std::string command : {"layer", "check"}) {
    INFO(command);
    check_refusal(bench.headlab({command, "cut.safetensors"}), 3,
                  {"cut.safetensors: tensor \"", "the file holds "});
    check_refusal(bench.headlab({command, "header.safetensors"}), 3, {"header.safetensors: "});
    check_refusal(bench.headlab({command, "no_such.safetensors"}), 3,
                  {"no_such.safetensors: ", "No such file or directory"});
    check_refusal(bench.headlab({command, (kGolden / "safetensors/ok_two.safetensors").string()}),
                  3, {"ok_two.safetensors: ", "headlab_case"});
  }
  check_refusal(bench.headlab({"layer", (kGolden / "nanogpt/train.safetensors").string()}), 3,
                {"train.safetensors: not a layer case"});
  write_safetensors(bench / "later.safetensors", {}, {{"headlab_case", "of-2031"}});
  check_refusal(bench.headlab({"check", "later.safetensors"}), 3,
                {"later.safetensors: ", "does not know the format of-2031"});
}

TEST_CASE("a log that was cut short exits 4 and is named, and left as it is") {
  const Bench bench;
  const auto log = bench.train() / "log.h5";
  const std::string whole = read_bytes(log), cut = whole.substr(0, whole.size() / 2);
  write_bytes(log, cut);
  for (const std::string command : {"inspect", "repair"})
    check_refusal(bench.headlab({command, log.string()}), 4, {log.string() + ": ", "truncated"});
  CHECK(read_bytes(log) == cut);
}

TEST_CASE("results that cannot be written exit 4 and name the file") {
  const Bench bench;
  const std::string cases = (kGolden / "mha/worked_h2.safetensors").string();
  for (const std::string command : {"layer", "check"}) {
    const Outcome outcome = bench.headlab({command, cases, "--out", "nowhere/x.safetensors"});
    INFO(outcome.err);
    CHECK(outcome.code == 4);
    CHECK_THAT(outcome.err, Contains("nowhere/x.safetensors: cannot be written: "));
    CHECK(lines_of(outcome.err).size() == 1);
  }
}

TEST_CASE("commands that want a run say what they found instead") {
  const Bench bench;
  for (const Arguments& command :
       {Arguments{"eval"}, Arguments{"generate"}, Arguments{"inspect"}, Arguments{"repair"}}) {
    const auto with = [&](const std::string& run) {
      Arguments arguments = command;
      arguments.push_back(run);
      return bench.headlab(arguments);
    };
    INFO(command[0]);
    check_refusal(with("no_such_run"), 4, {"no_such_run: "});
    check_refusal(with("text.txt"), 4, {"text.txt: "});
    check_refusal(with("."), 4, {"."});
  }
  check_refusal(bench.headlab({"eval", "."}), 4, {"no config.yaml; it holds text.txt, tiny.yaml"});
}

TEST_CASE("a checkpoint that is damaged exits 4 and names its file") {
  const Bench bench;
  const fs::path model = bench.train() / "ckpt/last/model.safetensors";
  std::string bytes = read_bytes(model);
  bytes.back() ^= 1;
  write_bytes(model, bytes);
  for (const Arguments& arguments :
       {Arguments{"eval", model.parent_path().string()},
        Arguments{"generate", model.parent_path().string(), "--prompt", "The"}}) {
    check_refusal(bench.headlab(arguments), 4, {"model.safetensors"});
  }
}

}  // namespace
}  // namespace headlab::testing::test_command_errors
