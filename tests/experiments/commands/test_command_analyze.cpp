// `headlab analyze` from outside: runs of several kinds, exported maps, and what it refuses.
#include <cmath>
#include <map>
#include <sstream>

#include "experiments/files/h5.h"
#include "tests/command_testing.h"

namespace headlab::testing::test_command_analyze {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

const Arguments kSmall{"model.layers=2", "model.heads=4"};

Json analyzed(const Bench& bench, Arguments arguments) {
  arguments.insert(arguments.begin(), "analyze");
  arguments.push_back("--json");
  const Outcome outcome = bench.headlab(arguments);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  return Json::parse(outcome.out);
}

fs::path train(const Bench& bench, const std::string& attention) {
  Arguments settings = kSmall;
  settings.push_back("model.attention=" + attention);
  return bench.train(settings);
}

std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// One layer and example of two heads over four tokens: previous token, and all alike.
struct Exported {
  std::vector<float> weights{1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0};

  Exported() {
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j) weights.push_back(j <= i ? 1.f / static_cast<float>(i + 1) : 0);
  }
  void write(const fs::path& path, std::map<std::string, std::string> metadata = {}) const {
    const auto bytes = bytes_of(weights);
    write_safetensors(path,
                      {{.name = "in.attention",
                        .dtype = Dtype::kF32,
                        .shape = {1, 1, 2, 4, 4},
                        .data = bytes.data(),
                        .bytes = bytes.size()}},
                      std::move(metadata));
  }
};

TEST_CASE("a run is analyzed on its validation data, into its own file") {
  const Bench bench;
  const fs::path run = train(bench, "{kind: mha}");
  const Json report = analyzed(bench, {run.string()});
  CHECK(report.at("step") == 5);
  CHECK(report.at("layers") == 2);
  CHECK(report.at("heads") == 4);
  CHECK(report.at("out") == (run / "analysis.h5").string());
  CHECK(fs::exists(run / "analysis.h5"));
  const Json& s = report.at("statistics");
  for (const char* name : {"entropy", "gini", "effective_rank", "importance", "output_norm",
                           "contribution_norm", "qk_rank_95"}) {
    INFO(name);
    REQUIRE(s.at(name).size() == 2);
    REQUIRE(s.at(name)[1].size() == 4);
    CHECK(s.at(name)[1][3].get<double>() > 0);
  }
  CHECK(s.at("next_token")[0][0].is_null());  // causal
  CHECK(s.at("cka")[1][2][1][2].get<double>() == Approx(1));
  CHECK(s.at("composition_v")[0][1][1][2].get<double>() > 0);
  CHECK(s.at("residual_ratio").size() == 2);
  CHECK(s.at("js")[1][2][1][2] == 0);
  CHECK(s.at("js")[0][1][1][2] == s.at("js")[1][2][0][1]);
  CHECK(s.at("similarity")[0][0][0][0] == 1);
  CHECK(s.at("head_map")[0][0].size() == 2);
  CHECK_FALSE(s.contains("js_clark"));
  CHECK(report.at("roles").at("broad").size() == 2);
  CHECK(report.at("thresholds").at("sink") == 0.3);

  const Outcome table = bench.headlab({"analyze", run.string()});
  const auto lines = lines_of(table.out);
  REQUIRE(lines.size() == 1 + 8 + (1 + 11) + 1);  // heads, what the columns are, the file
  CHECK_THAT(lines[0], Contains("head") && Contains("entropy") && Contains("roles"));
  CHECK_THAT(lines[8], Contains("1:3"));
  for (size_t n = 0; n < 9; ++n) CHECK(lines[n].size() <= 120);
  const Outcome inspected = bench.headlab({"inspect", (run / "analysis.h5").string()});
  INFO(inspected.out << inspected.err);
  CHECK(inspected.code == 0);
}

TEST_CASE("examples pool alike whatever the batch, the threads and the checkpoint's name") {
  const Bench bench;
  const fs::path run = train(bench, "{kind: mha}");
  const auto all = analyzed(bench, {run.string(), "--batches", "3", "--batch", "4"});
  CHECK(all.at("examples") == 12);
  const auto other = analyzed(bench, {(run / "ckpt/last").string(), "--batches", "1", "--batch",
                                      "12", "--threads", "2", "--out", "other.h5"});
  CHECK(fs::exists(bench / "other.h5"));
  for (const char* name : {"entropy", "gini", "stable_rank", "sink_rate"})
    for (size_t h = 0; h < 4; ++h)
      CHECK(other.at("statistics").at(name)[1][h].get<double>() ==
            Approx(all.at("statistics").at(name)[1][h].get<double>()).epsilon(1e-5));
  const auto two =
      analyzed(bench, {run.string(), "--batches", "3", "--batch", "4", "--threads", "2"});
  CHECK(two.at("statistics").at("js") == all.at("statistics").at("js"));
}

TEST_CASE("chosen statistics, thresholds and maps") {
  const Bench bench;
  const fs::path run = train(bench, "{kind: mha}");
  const auto report =
      analyzed(bench, {run.string(), "--stats", "entropy", "attention", "rollout", "js_clark",
                       "--maps", "2", "--thresholds", "broad=0.999", "sink=0.01"});
  const Json& s = report.at("statistics");
  CHECK(s.size() == 5);  // and head_mask
  REQUIRE(s.at("attention").size() == 2);
  REQUIRE(s.at("attention")[0].size() == 2);
  REQUIRE(s.at("attention")[0][0].size() == 4);
  double sum = 0;
  for (const auto& weight : s.at("attention")[1][1][3][7]) sum += weight.get<double>();
  CHECK(sum == Approx(1).epsilon(1e-5));
  CHECK(s.at("rollout")[1][1].size() == 8);
  CHECK(report.at("thresholds").at("broad") == 0.999);
  CHECK(report.at("roles").at("sink") == Json::parse("[[1,1,1,1],[1,1,1,1]]"));
}

TEST_CASE("kinds that compose, route, or have no map of tokens") {
  const Bench bench;
  const Json composed =
      analyzed(bench, {train(bench, "{kind: talking}").string()}).at("statistics");
  CHECK(composed.at("composed_row_sum")[1][3].is_number());
  CHECK(composed.at("pre_off_diagonal").size() == 2);
  CHECK(composed.at("gini")[1][3].get<double>() > 0);
  const Json routed = analyzed(bench, {train(bench, "{kind: moh, shared: 1, active: 1}").string()})
                          .at("statistics");
  CHECK(routed.at("density")[0][0] == 1);  // shared
  CHECK(routed.at("entropy")[0][0].is_number());
  const Bench plain;
  const Outcome trained =
      plain.headlab({"run", "tiny.yaml", "model.layers=2", "model.causal=false",
                     "data={kind: first_token}", "model.attention={kind: mha}",
                     "model.attention_at={\"1\": {kind: linformer, projected: 4}}"});
  INFO(trained.err);
  REQUIRE(trained.code == 0);
  const Json mixed = analyzed(plain, {lines_of(trained.out).at(0)}).at("statistics");
  CHECK(mixed.at("entropy")[0][0].is_number());
  CHECK(mixed.at("entropy")[1][0].is_null());  // weights over slots, not tokens
  CHECK(mixed.at("gini")[1][0].is_null());
  CHECK(mixed.at("output_norm")[1][0].is_number());
  CHECK(mixed.at("head_map")[1][1][0].is_null());
}

TEST_CASE("pruned heads keep their place") {
  const Bench bench;
  const fs::path run = train(bench, "{kind: mha}");
  for (const Arguments& more :
       {Arguments{"--out", "masked"}, Arguments{"--out", "sliced", "--slice"}}) {
    Arguments arguments{"prune", run.string(), "--heads", "0:1", "1:0,3"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome pruned = bench.headlab(arguments);
    INFO(pruned.err);
    REQUIRE(pruned.code == 0);
  }
  const Json masked = analyzed(bench, {"masked"}), sliced = analyzed(bench, {"sliced"});
  for (const Json* report : {&masked, &sliced}) {
    const Json& s = report->at("statistics");
    CHECK(s.at("head_mask") == Json::parse("[[1,0,1,1],[0,1,1,0]]"));
    CHECK(s.at("entropy")[0][1].is_null());
    CHECK(s.at("gini")[1][3].is_null());
    CHECK(s.at("js")[0][1][0][1].is_null());
    CHECK(report->at("roles").at("broad")[0][1] == 0);
  }
  // Layers without some of their heads say the same, number by number.
  REQUIRE(sliced.at("statistics").size() == masked.at("statistics").size());
  for (const auto& [name, values] : masked.at("statistics").items()) {
    const Json want = values.flatten(), got = sliced.at("statistics").at(name).flatten();
    REQUIRE(got.size() == want.size());
    for (const auto& [place, number] : want.items()) {
      INFO(name << place);
      REQUIRE(got.at(place).is_null() == number.is_null());
      if (!number.is_null() && name != "head_map")  // a picture, which may be turned
        REQUIRE(got.at(place).get<double>() ==
                Approx(number.get<double>()).epsilon(1e-4).margin(1e-6));
    }
  }
}

TEST_CASE("a circuit that is known is found out") {
  const Bench bench;
  const Outcome written =
      Process({.arguments = {(bench / "circuit").string()}, .program = kWriteHandBuilt}).end();
  INFO(written.err);
  REQUIRE(written.code == 0);
  const Json report = analyzed(bench, {"circuit", "--batches", "1", "--batch", "16"});
  const auto only = [&](const char* role) { return report.at("roles").at(role); };
  CHECK(only("previous") == Json::parse("[[1,0,0,0],[0,0,0,0]]"));
  CHECK(only("positional") == Json::parse("[[1,0,0,0],[0,0,0,0]]"));
  CHECK(only("induction") == Json::parse("[[0,0,0,0],[1,0,0,0]]"));
  CHECK(only("broad")[0][1] == 1);
  CHECK(only("broad")[1][1] == 1);
  const Json& s = report.at("statistics");
  CHECK(s.at("prev_token")[0][0].get<double>() >= 0.99);
  CHECK(s.at("induction_repeated")[1][0].get<double>() >= 0.99);
  CHECK(s.at("importance_paper")[1][0].get<double>() > 0);
  CHECK(s.at("importance_paper")[1][1].get<double>() < 1e-6);  // nobody hears it
}

TEST_CASE("a treebank says which relations a head follows") {
  const Bench bench;
  const fs::path run = bench.train();
  write_bytes(bench / "tiny.conllu",
              "1\tThe\tthe\tDET\t_\t_\t2\tdet\t_\t_\n"
              "2\tfox\tfox\tNOUN\t_\t_\t0\troot\t_\t_\n\n");
  const Json report = analyzed(bench, {run.string(), "--treebank", "tiny.conllu"});
  CHECK(report.at("axes").at("relation") == Json::parse(R"(["all", "det", "root"])"));
  const Json& s = report.at("statistics");
  CHECK(s.at("relation_count") == Json::parse("[2.0,1.0,1.0]"));
  CHECK(s.at("accuracy").size() == 2);
  CHECK(s.at("accuracy")[1][0][1][1].is_number());
  CHECK(report.at("roles").at("syntactic") == Json::parse("[[0,0]]"));  // too few words to say
}

TEST_CASE("the best head for each relation is shown beside the best fixed offset") {
  const Bench bench;
  const fs::path run = bench.train({"data.context=16"});
  std::string sentences;
  for (int n = 0; n < 100; ++n)
    sentences +=
        "1\tThe\tthe\tDET\t_\t_\t3\tdet\t_\t_\n2\tlazy\tlazy\tADJ\t_\t_\t3\tamod\t_\t_\n"
        "3\tdog\tdog\tNOUN\t_\t_\t0\troot\t_\t_\n\n";
  write_bytes(bench / "many.conllu", sentences);
  const Arguments command{"analyze", run.string(), "--treebank", "many.conllu", "--batches", "1"};
  const Outcome said = bench.headlab(command);
  INFO(said.out << said.err);
  REQUIRE(said.code == 0);
  const Json report =
      analyzed(bench, {run.string(), "--treebank", "many.conllu", "--batches", "1"});
  const auto& names = report.at("axes").at("relation");
  const Json& s = report.at("statistics");
  const std::map<std::string, std::string> offsets{{"det", "+2"}, {"amod", "+1"}};
  for (const auto& one : offsets) {
    // clang captures no structured binding.
    const std::string& relation = one.first;
    const size_t r = std::find(names.begin(), names.end(), relation) - names.begin();
    double most = -1;
    std::string head;
    for (const auto& direction : s.at("accuracy"))
      for (size_t h = 0; h < direction[0].size(); ++h)
        if (const double value = direction[0][h][r]; value > most)
          most = value, head = "0:" + std::to_string(h);
    const auto lines = lines_of(said.out);
    const auto line = std::find_if(lines.begin(), lines.end(), [&](const std::string& row) {
      return row.find(" " + relation + " ") != row.npos;
    });
    REQUIRE(line != lines.end());
    INFO(*line);
    std::istringstream words(*line);
    std::string name, count, by, place, accuracy, baseline, at;
    words >> name >> count >> by >> accuracy >> place >> baseline >> at;
    CHECK(count == "100");
    CHECK(by == head);
    CHECK(std::stod(accuracy) == Approx(100 * most).margin(0.06));
    CHECK(baseline == "100.0%");
    CHECK(at == one.second);
  }
  CHECK(said.out.find(" root ") == std::string::npos);  // its head is no word
}

TEST_CASE("exported maps are analyzed without a model") {
  const Bench bench;
  Exported().write(bench / "maps.safetensors", {{"causal", "true"}, {"top_k", "1"}});
  const Json report = analyzed(bench, {"maps.safetensors", "--out", "maps.h5", "--maps", "1"});
  CHECK(fs::exists(bench / "maps.h5"));
  const Json& s = report.at("statistics");
  CHECK(s.at("prev_token")[0][0] == 1);
  CHECK(s.at("top_k_mass")[0][1].get<double>() == Approx((1 + 1 / 2. + 1 / 3. + 1 / 4.) / 4));
  CHECK(s.at("mean_distance")[0][1].get<double>() == Approx(0.75));
  CHECK(s.at("attention")[0][0][0][3] == Json::parse("[0.0,0.0,1.0,0.0]"));
  CHECK_FALSE(s.contains("importance"));
  CHECK(report.at("roles").at("previous") == Json::parse("[[1,0]]"));
  CHECK(report.at("roles").at("broad") == Json::parse("[[0,1]]"));
  const auto before = snapshot(bench.path());
  const Outcome table = bench.headlab({"analyze", "maps.safetensors"});
  CHECK(lines_of(table.out).size() == 3 + (1 + 9));  // heads, and what the columns are
  CHECK_THAT(table.out, Contains("previous") && Contains("broad"));
  CHECK(snapshot(bench.path()) == before);  // nothing is written unless asked for
}

TEST_CASE("maps without a word on it are taken as what they look like, which is said") {
  const Bench bench;
  Exported().write(bench / "maps.safetensors");
  const Json found = analyzed(bench, {"maps.safetensors", "--out", "maps.h5"});
  CHECK(found.at("causal") == true);
  CHECK(found.at("causal_from") == "weights");
  CHECK(found.at("statistics").at("entropy_normalized")[0][1].get<double>() == Approx(1));
  const Json manifest = Json::parse(H5File::open(bench / "maps.h5").root().text("manifest_json"));
  CHECK(manifest.at("maps").at("causal_from") == "weights");
  CHECK_THAT(
      bench.headlab({"analyze", "maps.safetensors"}).out,
      Catch::Matchers::StartsWith("taken as causal: no query attends to a later key (--causal no"));
  const Json otherwise = analyzed(bench, {"maps.safetensors", "--causal", "no"});
  CHECK(otherwise.at("causal") == false);
  CHECK(otherwise.at("causal_from") == "option");
  CHECK(otherwise.at("statistics").at("entropy_normalized")[0][1].get<double>() < 0.99);
  const Outcome silent = bench.headlab({"analyze", "maps.safetensors", "--causal", "yes"});
  CHECK_THAT(silent.out, !Contains("taken as causal"));
  const fs::path run = bench.train();
  check_refusal(bench.headlab({"analyze", run.string(), "--causal", "yes"}), 2,
                {"--causal", "is for files of maps"});
}

TEST_CASE("importance alone, in its reductions") {
  const Bench bench;
  const fs::path run = train(bench, "{kind: mha}");
  const Json all = analyzed(bench, {run.string()}).at("statistics");
  const Json report = analyzed(bench, {run.string(), "--importance", "--out", "i.h5"});
  const Json& s = report.at("statistics");
  double layer = 0, model = 0;
  for (size_t l = 0; l < 2; ++l)
    for (size_t h = 0; h < s.at("importance")[l].size(); ++h) {
      if (l == 0) layer += std::pow(s.at("importance")[l][h].get<double>(), 2);
      model += std::pow(s.at("importance_global")[l][h].get<double>(), 2);
    }
  CHECK(layer == Approx(1));
  CHECK(model == Approx(1));
  for (const char* name : {"importance_paper", "importance_per_position", "importance_batch",
                           "activation", "importance"})
    CHECK(s.at(name) == all.at(name));
  CHECK_FALSE(s.contains("entropy"));
  const Outcome table = bench.headlab({"analyze", run.string(), "--importance"});
  CHECK_THAT(table.out, Contains("in its layer") && Contains("E |dL/dxi|"));
  check_refusal(bench.headlab({"analyze", run.string(), "--importance", "--stats", "entropy"}), 2,
                {"--importance"});
}

TEST_CASE("what cannot be analyzed is refused in a line, and nothing is written") {
  const Bench bench;
  const fs::path run = bench.train();
  const auto refused = [&](const Arguments& arguments, int code,
                           const std::vector<std::string>& parts) {
    const auto before = snapshot(bench.path());
    Arguments all{"analyze"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    check_refusal(bench.headlab(all), code, parts);
    CHECK(snapshot(bench.path()) == before);
  };
  refused({run.string(), "--stats", "entropi"}, 2, {"entropi", "did you mean 'entropy'"});
  refused({run.string(), "--thresholds", "sinc=1"}, 2, {"sinc", "did you mean 'sink'"});
  refused({run.string(), "--split", "vali"}, 2, {"vali"});
  refused({"nowhere"}, 4, {"nowhere"});
  refused({run.string(), "--out", "no/where.h5"}, 4, {"no/where.h5"});
  write_bytes(bench / "no.conllu", "1\tThe\n\n");
  refused({run.string(), "--treebank", "no.conllu"}, 3, {"no.conllu:1"});
  write_bytes(bench / "no.safetensors", "no tensors");
  refused({"no.safetensors"}, 3, {"no.safetensors"});
  Exported wrong;
  wrong.weights[21] = 0.75;
  wrong.write(bench / "wrong.safetensors", {{"causal", "true"}});
  refused({"wrong.safetensors", "--out", "wrong.h5"}, 3,
          {"wrong.safetensors", "head 1, query 1", "1.25, not 1"});
}

}  // namespace
}  // namespace headlab::testing::test_command_analyze
