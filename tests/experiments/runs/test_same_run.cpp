// What makes two experiments one run: settings as they resolve, data by their contents.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/head_kinds.h"
#include "experiments/files/field_table.h"
#include "experiments/runs/resolved_settings.h"
#include "experiments/runs/run_files.h"
#include "experiments/runs/run_identity.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/runs/same_run.h"
#include "experiments/runs/statistic_names.h"
#include "tests/catch.h"
#include "tests/scratch.h"

namespace headlab::test_same_run {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using Json = nlohmann::ordered_json;

Experiment experiment_of(const std::string& yaml, const fs::path& base = "/") {
  Experiment experiment;
  read_config(experiment, parse_config(yaml, "x.yaml", base));
  return experiment;
}

fs::path path_of(const std::string& yaml, const fs::path& base = "/") {
  return run_path("/out", experiment_of(yaml, base));
}

TEST_CASE("an option that stands at its default is not in the name of a run, any other is") {
  const std::string base = "name: a\ndata: {kind: char, path: a.txt}\n";
  // Frozen: another value would move every run that exists. (A file that is not there counts by its
  // path.)
  CHECK(path_of(base) == "/out/a/d064a507-s1337");
  CHECK(path_of(base + "train: {lr: 0.001}\nmodel: {kind: decoder, layers: 4}\n") == path_of(base));
  CHECK(path_of(base + "train: {threads: 2, busy_cores: off}\n") == path_of(base));
  CHECK(path_of(base + "train: {lr: 0.002}\n") != path_of(base));
  CHECK(path_of(base + "tag: b\n") != path_of(base));
  CHECK(path_of(base + "seed: 3\n").filename().string().ends_with("-s3"));
}

// --- settings

const std::string kSmall =
    "name: a\ndata: {kind: induction, context: 16}\ntrain: {steps: 50, warmup: 5TRAIN}\n"
    "model: {kind: decoder, layers: 2, d_model: 16, heads: 4MODEL}\n";

std::string small_with(const std::string& model, const std::string& train = "") {
  auto text = kSmall;
  const auto put = [&](const std::string& word, const std::string& more) {
    text.replace(text.find(word), word.size(), more.empty() ? "" : ", " + more);
  };
  put("TRAIN", train), put("MODEL", model);
  return text;
}

std::string hash_of(const std::string& yaml) { return run_hash(experiment_of(yaml)); }

TEST_CASE("settings that say what would follow anyway make no other run") {
  const auto plain = hash_of(small_with(""));
  for (const char* same :
       {"d_ff: 64", "kv_heads: 4", "head_dim: 4", "attention_dropout: 0.0", "window: 0",
        "window: [0, 0]", "attention: mha", "attention: {kind: mha, bias: false}",
        "position: {kind: learned}", "attention_at: {}", "attention_at: {\"0\": mha}",
        "attention_at: {\"0-1\": {bias: false}}", "head_dim: 4, d_ff: 64, kv_heads: 4"}) {
    INFO(same);
    CHECK(hash_of(small_with(same)) == plain);
  }
  for (const char* other :
       {"d_ff: 65", "kv_heads: 2", "head_dim: 8", "attention_dropout: 0.1", "window: 4",
        "window: [0, 4]", "attention: {kind: mha, bias: true}", "position: rope",
        "attention_at: {\"0\": moh}", "attention_at: {\"1\": {bias: true}}", "dropout: 0.1"}) {
    INFO(other);
    CHECK(hash_of(small_with(other)) != plain);
  }
  for (const char* same : {"lr: 1e-3", "min_lr: 0.0001", "decay_steps: 50", "batch: 12"}) {
    INFO(same);
    CHECK(hash_of(small_with("", same)) == plain);
  }
  for (const char* other : {"min_lr: 0.0002", "decay_steps: 49", "batch: 13"}) {
    INFO(other);
    CHECK(hash_of(small_with("", other)) != plain);
  }
  CHECK(hash_of(small_with("attention_at: {\"0-0\": moh, \"1\": moh}")) ==
        hash_of(small_with("attention_at: {\"0-1\": {kind: moh, shared: 1}}")));
  CHECK(hash_of(small_with("window: [4, 0]")) == hash_of(small_with("window: [4, 0], d_ff: 64")));
  CHECK(hash_of(small_with("window: [4, 0]")) != hash_of(small_with("window: [0, 4]")));
}

TEST_CASE("shares, lists of statistics and what data derive come to one wording") {
  const auto with = [](const std::string& warmup, const std::string& more = "") {
    return hash_of("name: a\ndata: {kind: recall, context: 32, symbols: 64" + more +
                   "}\ntrain: {steps: 50, warmup: " + warmup + "}\n");
  };
  CHECK(with("5") == with("0.1"));
  CHECK(with("5") != with("0.2"));
  CHECK(with("5") == with("5", ", pairs: 4"));
  CHECK(with("5") != with("5", ", pairs: 3"));
  const auto stats = [](const std::string& list) {
    return hash_of("name: a\ndata: {kind: copy}\nlog: {stats: " + list + "}\n");
  };
  CHECK(stats("[]") == stats(fmt::format("[{}]", fmt::join(default_statistics(), ", "))));
  CHECK(stats("[entropy, max_logit]") == stats("[max_logit, entropy]"));
  CHECK(stats("all") == stats(fmt::format("[{}]", fmt::join(statistic_names(), ", "))));
  CHECK(stats("[]") != stats("all"));
}

TEST_CASE("the two sides of a seq2seq model may say what the model says") {
  const auto with = [](const std::string& more) {
    return hash_of(
        "name: a\ndata: {kind: copy}\nmodel: {kind: seq2seq, layers: 2, d_model: 16, heads: 4" +
        more + "}\n");
  };
  for (const char* same :
       {", encoder: {layers: 2, heads: 4, d_ff: 64}", ", decoder: {cross: mha}",
        ", decoder: {kv_heads: 4, heads: 4}, d_ff: 64", ", encoder: {attention: mha}"}) {
    INFO(same);
    CHECK(with(same) == with(""));
  }
  for (const char* other : {", encoder: {layers: 1}", ", decoder: {cross: moh}",
                            ", encoder: {kv_heads: 2}", ", encoder: {attention: moh}"}) {
    INFO(other);
    CHECK(with(other) != with(""));
  }
}

// Options of each kind that follow from the rest: of 4 heads of width 4, with what they come to.
const std::map<std::string, std::vector<std::string>> kDerived{
    {"collaborative", {"shared_dim: 16"}},
    {"dcmha", {"hidden: 16"}},
    {"differential", {"norm: true", "scale: 0.7071067811865475"}},
    {"dsa", {"index_heads: 4", "index_dim: 4"}},
    {"forgetting", {"scale: 0.5"}},
    {"gated_deltanet", {"qk_heads: 4", "value_dim: 4"}},
    {"gla",
     {"kv_rank: 8", "q_rank: 32", "nope_dim: 4", "rope_dim: 2", "value_dim: 4",
      "scale: 0.4082482904638631", "down_bias: false", "up_bias: false", "o_bias: false"}},
    {"gta", {"rope_dim: 2", "scale: 0.5", "k_rope_bias: false"}},
    {"kda", {"qk_heads: 4", "value_dim: 4", "rank: 4"}},
    {"linformer", {"length: 16", "projected: 4"}},
    {"mla",
     {"kv_rank: 16", "nope_dim: 4", "rope_dim: 2", "value_dim: 4", "scale: 0.4082482904638631"}},
    {"moh", {"shared: 1", "active: 1"}},
    {"mta", {"scale: 0.5"}},
    {"nsa", {"compress_positions: false"}},
    {"sigmoid", {"scale: 0.5"}},
    {"switchhead", {"active: 2", "scale: 0.5"}},
    {"tpa", {"scale: 0.5"}},
};
// They depend on the layer, or nothing stands in their place.
const std::set<std::string> kNotDerived{"compress_hidden", "lambda_init", "lower_bound", "time_min",
                                        "time_max"};

TEST_CASE("an option of any kind of heads that says what it would be makes no other run") {
  for (const auto& kind : head_names()) DYNAMIC_SECTION(kind) {
      auto derived = kDerived.count(kind) ? kDerived.at(kind) : std::vector<std::string>();
      const auto options = head_registry().options(kind);
      std::set<std::string> open;
      for (const auto& field : describe_block(*options))
        if (field.default_text.empty() && field.name.find('.') == field.name.npos &&
            !kNotDerived.count(field.name))
          open.insert(field.name);
      for (const char* usual : {"qkv_bias: false", "o_bias: false", "scale: 0.5", "map: softmax"}) {
        const std::string name(usual, std::string_view(usual).find(':'));
        const bool known = std::any_of(derived.begin(), derived.end(), [&](const auto& one) {
          return one.starts_with(name + ":");
        });
        if (open.count(name) && !known) derived.emplace_back(usual);
      }
      for (const auto& one : derived) open.erase(one.substr(0, one.find(':')));
      INFO(fmt::format("{}", fmt::join(open, ", ")));
      CHECK(open.empty());

      const auto traits = dynamic_cast<const HeadOptions&>(*options).traits();
      const auto with = [&](const std::string& more) {
        return hash_of(
            small_with(fmt::format("causal: {}, attention: {{kind: {}{}{}}}", traits.causal, kind,
                                   more.empty() ? "" : ", ", more)));
      };
      const auto plain = with("");
      for (const auto& one : derived) {
        INFO(one);
        CHECK(with(one) == plain);
      }
      CHECK(with(fmt::format("{}", fmt::join(derived, ", "))) == plain);
    }
  const auto gated = [](const std::string& inner) {
    return hash_of(small_with("attention: {kind: gated, inner: " + inner + "}"));
  };
  CHECK(gated("moh") == gated("{kind: moh, shared: 1, active: 1}"));
  CHECK(gated("moh") != gated("{kind: moh, shared: 2}"));
}

TEST_CASE("layers that merge over the model's heads keep what these would change") {
  const std::string two = "attention: {kind: moh, shared: 2, active: 2}";
  CHECK(hash_of(small_with(two + ", attention_at: {\"0\": {shared: 1}}")) !=
        hash_of(small_with(two)));
  const auto settled = resolved(experiment_of(
      small_with(two + ", attention_at: {\"0\": {kind: moh, shared: 1, active: 1}}")));
  CHECK_THAT(to_flow(settled.model.write()), Contains("\"0\": {kind: moh, shared: 1, active: 1"));
}

// --- data

std::string text_of(char letter) { return fmt::format("{}\n", std::string(400, letter)); }

TEST_CASE("data count by their contents, wherever they lie and however they are named") {
  const Scratch scratch;
  fs::create_directories(scratch / "there");
  write_bytes(scratch / "a.txt", text_of('a'));
  write_bytes(scratch / "there/copy.txt", text_of('a'));
  write_bytes(scratch / "b.txt", text_of('b'));
  fs::create_symlink(scratch / "a.txt", scratch / "link.txt");
  const auto hash = [&](const std::string& path) {
    return run_hash(
        experiment_of("name: a\ndata: {kind: char, path: " + path + "}\n", scratch.path()));
  };
  const auto plain = hash("a.txt");
  for (const auto& same :
       {(scratch / "a.txt").string(), std::string("./a.txt"), std::string("there/../a.txt"),
        std::string("there/copy.txt"), std::string("link.txt")}) {
    INFO(same);
    CHECK(hash(same) == plain);
  }
  CHECK(hash("b.txt") != plain);

  SECTION("a file that is rewritten at its size and time is another") {
    const auto time = fs::last_write_time(scratch / "a.txt");
    write_bytes(scratch / "a.txt", text_of('c'));
    fs::last_write_time(scratch / "a.txt", time);
    CHECK(hash("a.txt") != plain);
  }
  SECTION("which of several files it is counts") {
    const auto pair = [&](const std::string& more) {
      return run_hash(
          experiment_of("name: a\ndata: {kind: words, path: a.txt" + more + "}\n", scratch.path()));
    };
    CHECK(pair(", validation: b.txt") != pair(", test: b.txt"));
    CHECK(pair(", validation: b.txt") != pair(""));
  }
}

TEST_CASE("of a folder those files count that are read") {
  const Scratch scratch;
  for (const char* name : {"one", "two"}) {
    fs::create_directories(scratch / name);
    for (const char* file : {"meta.json", "train.bin", "val.bin"})
      write_bytes(scratch / name / file, file);
  }
  const auto hash = [&](const std::string& path) {
    return run_hash(
        experiment_of("name: a\ndata: {kind: tokens, path: " + path + "}\n", scratch.path()));
  };
  const auto plain = hash("one");
  CHECK(hash("two") == plain);
  write_bytes(scratch / "two/readme", "of no account");
  CHECK(hash("two") == plain);
  write_bytes(scratch / "two/test.bin", "more");
  CHECK(hash("two") != plain);
  write_bytes(scratch / "one/val.bin", "other");
  CHECK(hash("one") != plain);
}

// --- runs under other names

TEST_CASE("a run that an older version named is found by what it is") {
  const Scratch scratch;
  write_bytes(scratch / "a.txt", text_of('a'));
  const std::string yaml = "name: a\nseed: 3\ndata: {kind: char, path: a.txt}\n";
  auto experiment = experiment_of(yaml, scratch.path());
  const auto out = scratch / "out";
  const auto usual = run_path(out, experiment);
  REQUIRE(usual.parent_path() == out / "a");

  const auto make = [&](const std::string& name, const std::string& config,
                        const std::string& digest) {
    auto made = experiment_of(config, scratch.path());
    const Json manifest{{"data", {{{"path", (scratch / "a.txt").string()}, {"sha256", digest}}}}};
    const auto run = RunDirectory::create(out / "a" / name, to_yaml(write_block(made)), manifest);
    return run.path();
  };
  const auto digest = file_json(scratch / "a.txt").at("sha256").get<std::string>();
  make("00000001-s3", yaml + "train: {lr: 0.002}\n", digest);  // other settings
  make("00000002-s3", yaml, std::string(64, '0'));             // other data then
  make("00000003-s4", "name: a\nseed: 4\ndata: {kind: char, path: a.txt}\n",
       digest);                           // another seed
  make("not-of-a-run-s3", yaml, digest);  // no name of a run
  CHECK(run_path(out, experiment) == usual);
  const auto old = make("00000004-s3", yaml + "model: {d_ff: 512}\n", digest);
  fs::remove(scratch / "a.txt");
  write_bytes(scratch / "elsewhere.txt", text_of('a'));
  const auto moved =
      experiment_of("name: a\nseed: 3\ndata: {kind: char, path: elsewhere.txt}\n", scratch.path());
  CHECK(run_path(out, moved) == old);
  CHECK(settings_that_differ(old, moved).empty());
  RunDirectory::create(usual, to_yaml(write_block(experiment)), Json::object());
  CHECK(run_path(out, moved) == usual);  // its own name comes first
}

TEST_CASE("a run on a folder that has moved since is found by the files that it had") {
  const Scratch scratch;
  fs::create_directories(scratch / "one");
  for (const char* file : {"meta.json", "train.bin", "val.bin"})
    write_bytes(scratch / "one" / file, file);
  const auto on = [&](const std::string& folder) {
    return experiment_of("name: a\nseed: 3\ndata: {kind: tokens, path: " + folder + "}\n",
                         scratch.path());
  };
  auto experiment = on("one");
  const Json manifest{{"data", data_json({scratch / "one/meta.json", scratch / "one/train.bin",
                                          scratch / "one/val.bin"})}};
  const auto old = scratch / "out/a/00000001-s3";
  RunDirectory::create(old, to_yaml(write_block(experiment)), manifest);
  fs::rename(scratch / "one", scratch / "two");
  CHECK(run_path(scratch / "out", on("two")) == old);
  write_bytes(scratch / "two/val.bin", "other");
  CHECK(run_path(scratch / "out", on("two")) != old);
}

}  // namespace
}  // namespace headlab::test_same_run
