// `headlab bench`: the structure of what it prints. No test asserts a time.
#include <algorithm>

#include "tests/command_testing.h"

namespace headlab::testing::test_command_bench {
namespace {

using Catch::Contains;

const std::string kShape = "2x12x16x2";

Arguments quick(Arguments words) {
  const Arguments usual{"--shape",   kShape, "--seconds", "0.001",
                        "--threads", "1",    "--device",  "cpu"};
  words.insert(words.begin(), "bench");
  words.insert(words.end(), usual.begin(), usual.end());
  return words;
}

Json json_of_bench(Arguments words) {
  words = quick(std::move(words));
  words.push_back("--json");
  const Outcome outcome = headlab(words);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  return Json::parse(outcome.out);
}

const Json& row_of(const Json& shape, const std::string& kind, const std::string& path) {
  const auto& rows = shape.at("rows");
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const Json& row) {
    return row.at("kind") == kind && row.at("path") == path && row.at("source") == "headlab";
  });
  REQUIRE(found != rows.end());
  return *found;
}

std::string text_of_bench(Arguments words) {
  const Outcome outcome = headlab(quick(std::move(words)));
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  return outcome.out;
}

// {"least", "median", "most", "rounds"} agree.
void check_spread(const Json& spread, size_t rounds) {
  auto values = spread.at("rounds").get<std::vector<double>>();
  REQUIRE(values.size() == rounds);
  std::sort(values.begin(), values.end());
  CHECK(spread.at("least") == values.front());
  CHECK(spread.at("most") == values.back());
  CHECK(spread.at("median").get<double>() >= values.front());
  CHECK(spread.at("median").get<double>() <= values.back());
}

TEST_CASE("bench: figures of a pass fit together") {
  const Json found = json_of_bench(
      {"mha", "talking", "--rounds", "3", "--paths", "auto,eager", "--statistics", "--decode"});
  CHECK(found.at("rounds") == 3);
  CHECK(found.at("seconds") == 0.001);
  CHECK(found.at("attention") == "causal");
  CHECK(found.at("precision") == "fp32");
  CHECK(found.at("machine").at("threads") == 1);
  CHECK(found.at("machine").at("device") == "cpu");
  const Json& peak = found.at("peak");
  CHECK(peak.at("flops") == std::max(peak.at("before").at("flops").get<double>(),
                                     peak.at("after").at("flops").get<double>()));
  const Json& shape = found.at("shapes").at(0);
  CHECK(shape.at("shape") == kShape);
  CHECK(shape.at("waited").size() == 3);
  CHECK(shape.at("rows").size() == 4);
  for (const std::string kind : {"mha", "talking"})
    for (const std::string path : {"auto", "eager"})
      for (const std::string pass : {"forward", "both", "statistics", "decode"}) {
        INFO(kind << " " << path << " " << pass);
        const Json& figure = row_of(shape, kind, path).at(pass);
        for (const char* spread : {"ms", "beside_ms", "ratio"}) check_spread(figure.at(spread), 3);
        for (size_t round = 0; round < 3; ++round)
          CHECK(figure.at("ratio").at("rounds").at(round).get<double>() ==
                Approx(figure.at("ms").at("rounds").at(round).get<double>() /
                       figure.at("beside_ms").at("rounds").at(round).get<double>()));
        if (pass == "forward" || pass == "both")
          CHECK(figure.at("share_of_peak").get<double>() ==
                Approx(figure.at("flops").get<double>() /
                       (figure.at("ms").at("least").get<double>() / 1e3) /
                       peak.at("flops").get<double>()));
        else
          CHECK(figure.at("flops").is_null());
      }
  const Json& mha = row_of(shape, "mha", "auto");
  CHECK(mha.at("both").at("flops") == 3 * mha.at("forward").at("flops").get<double>());
  CHECK(row_of(shape, "mha", "eager").at("forward").at("peak_bytes") >
        mha.at("forward").at("peak_bytes"));
}

TEST_CASE("bench: without asking, every kind is timed on auto, forward and both") {
  const Json found = json_of_bench({"--rounds", "1"});
  const Json& rows = found.at("shapes").at(0).at("rows");
  CHECK(rows.size() > 15);
  for (const Json& row : rows) {
    INFO(row.at("kind"));
    CHECK(row.at("path") == "auto");
    CHECK_FALSE(row.contains("decode"));
    CHECK_FALSE(row.contains("statistics"));
    CHECK(row.at("forward").contains("ms") != row.at("forward").contains("reason"));
  }
}

TEST_CASE("bench: what a kind or a path cannot do is n/a with its reason") {
  const Json found = json_of_bench({"linformer", "dcmha", "{kind: sigmoid}", "--rounds", "1",
                                    "--paths", "auto,sdpa", "--decode"});
  const Json& shape = found.at("shapes").at(0);
  CHECK(row_of(shape, "linformer", "auto").at("forward") ==
        Json{{"reason", "'linformer' heads cannot be causal"}});
  CHECK_THAT(row_of(shape, "dcmha", "sdpa").at("both").at("reason").get<std::string>(),
             Contains("auto or eager serves"));
  CHECK(row_of(shape, "dcmha", "auto").at("both").contains("ms"));
  CHECK(row_of(shape, "sigmoid", "auto").at("decode").at("reason") ==
        "'sigmoid' heads do not decode with a cache");
  CHECK(row_of(shape, "sigmoid", "auto").at("forward").contains("ms"));

  const auto text = text_of_bench({"linformer", "bigbird", "--rounds", "1", "--paths", "auto"});
  CHECK_THAT(text, Contains("n/a: linformer on auto: 'linformer' heads cannot be causal\n"));
}

TEST_CASE("bench: --attention chooses who sees whom") {
  const Json both_ways =
      json_of_bench({"linformer", "forgetting", "--rounds", "1", "--attention", "bidirectional"});
  const Json& shape = both_ways.at("shapes").at(0);
  CHECK(row_of(shape, "linformer", "auto").at("forward").contains("ms"));
  CHECK(row_of(shape, "forgetting", "auto").at("both").at("reason") ==
        "'forgetting' heads must be causal");
  const Json cross = json_of_bench({"mha", "bigbird", "--rounds", "1", "--attention", "cross"});
  CHECK(row_of(cross.at("shapes").at(0), "mha", "auto").at("both").contains("ms"));
  CHECK(row_of(cross.at("shapes").at(0), "bigbird", "auto").at("both").at("reason") ==
        "'bigbird' heads have no cross-attention");
}

TEST_CASE("bench: a kind may have options, and products another type") {
  const Json found =
      json_of_bench({"{kind: entmax, alpha: 2}", "--rounds", "1", "--dtype", "bf16"});
  CHECK(found.at("precision") == "bf16");
  const Json& row = found.at("shapes").at(0).at("rows").at(0);
  CHECK(row.at("kind") == "entmax");
  CHECK(row.at("written") == "{kind: entmax, alpha: 2.0}");
  CHECK(row.at("forward").contains("ms"));
}

TEST_CASE("bench: the text has the tables, the range of rounds and what the noise is") {
  const auto text = text_of_bench({"mha", "--rounds", "2", "--statistics"});
  for (const char* part :
       {"matrix products reach ", "copies ", "least / median of 2 rounds", "2x12x16x2: batch 2",
        " to ", "memory [MiB]", "statistics", "took the cores"})
    CHECK_THAT(text, Contains(part));
  const auto markdown = text_of_bench({"mha", "--rounds", "2", "--markdown"});
  CHECK_THAT(markdown, Contains("### 2x12x16x2"));
  CHECK_THAT(markdown, Contains("| kind | path | forward [ms] |"));
  CHECK_THAT(markdown, Contains("| mha | auto | "));
}

TEST_CASE("bench: several shapes are measured one after the other") {
  const Json found = json_of_bench({"mha", "--rounds", "1", "--shape", "1x8x8x2"});
  REQUIRE(found.at("shapes").size() == 2);
  CHECK(found.at("shapes").at(0).at("shape") == "1x8x8x2");
  CHECK(found.at("shapes").at(1).at("shape") == kShape);
}

TEST_CASE("bench: a kind by its name has the options of its config, and the text tells them") {
  const Json found = json_of_bench({"mta", "{kind: mta}", "linformer", "--rounds", "1"});
  const Json& rows = found.at("shapes").at(0).at("rows");
  CHECK(rows.at(0).at("label") == "mta");
  CHECK(rows.at(0).at("written") ==
        "{kind: mta, pre_kernel: [6, 11], post: 2, norm: true, gate: head}");
  CHECK(rows.at(1).at("label") == "{kind: mta}");
  CHECK(rows.at(1).at("written") == "mta");
  CHECK(rows.at(2).at("written") == "linformer");
  CHECK_THAT(text_of_bench({"mta", "--rounds", "1"}),
             Contains("\nmta is {kind: mta, pre_kernel: [6, 11],"));
}

TEST_CASE("bench: an option that does not fit a shape is the reason of its kind") {
  const Json found = json_of_bench({"differential", "--rounds", "1", "--shape", "1x4x6x2"});
  CHECK_THAT(row_of(found.at("shapes").at(0), "differential", "auto")
                 .at("forward")
                 .at("reason")
                 .get<std::string>(),
             Catch::Matchers::StartsWith("version: version 1 cuts heads in two halves"));
  CHECK(row_of(found.at("shapes").at(1), "differential", "auto").at("forward").contains("ms"));
}

TEST_CASE("bench: the usual shapes are three") {
  const Outcome outcome =
      headlab({"bench", "mha", "--rounds", "1", "--seconds", "0.001", "--threads", "1", "--json"});
  REQUIRE(outcome.code == 0);
  const Json shapes = Json::parse(outcome.out).at("shapes");
  REQUIRE(shapes.size() == 3);
  CHECK(shapes.at(0).at("shape") == "12x64x128x4");
  CHECK(shapes.at(1).at("shape") == "4x256x384x6");
  CHECK(shapes.at(2).at("shape") == "2x1024x384x6");
}

TEST_CASE("bench refuses what it cannot take, before it measures") {
  const std::pair<Arguments, std::vector<std::string>> wrong[] = {
      {{"bench", "mhaa"}, {"no kind of heads is called 'mhaa'; did you mean 'mha'?"}},
      {{"bench", "{kind: entmax, alpa: 2}"}, {"KIND:1:16", "alpa", "did you mean 'alpha'?"}},
      {{"bench", "{kind: entmaxx}"}, {"KIND:1:8", "entmax"}},
      {{"bench", "--shape", "12x64"}, {"--shape 12x64: character 6", "such as 12x64x128x4"}},
      {{"bench", "--shape", "1x8x8x2", "mha"}, {"--shape mha", "name kinds before --shape"}},
      {{"bench", "--paths", "auto,egaer"}, {"no path", "'egaer'; did you mean 'eager'?"}},
      {{"bench", "--paths", "auto,"}, {"no path of attention is called ''"}},
      {{"bench", "--dtype", "fp16"}, {"--dtype", "fp32,bf16"}},
      {{"bench", "--attention", "all"}, {"--attention", "bidirectional"}},
      {{"bench", "--attention", "cross", "--decode"}, {"--decode: decoding is causal, not cross"}},
      {{"bench", "--rounds", "0"}, {"--rounds", "above 0"}},
      {{"bench", "--seconds", "-1"}, {"--seconds", "above 0"}},
      {{"bench", "--json", "--markdown"}, {"choose one"}},
      {{"bench", "--python", "/bin/sh"}, {"--python", "belongs to --peers"}},
      {{"bench", "--plot", "roof.pdf"}, {"roof.pdf", ".png or .svg"}},
      {{"bench", "--decoed"}, {"no option '--decoed'; did you mean '--decode'?"}}};
  for (const auto& [words, parts] : wrong) {
    INFO(words.back());
    check_refusal(headlab(words), 2, parts);
  }
  const Scratch scratch;
  check_refusal(headlab({"bench", "--plot", (scratch / "none/roof.svg").string()}), 4,
                {"cannot be written"});
}

TEST_CASE("bench --peers names a Python that is not there, or has no torch") {
  const auto with = [](Arguments words, std::map<std::string, std::string> environment) {
    words.insert(words.begin(), {"bench", "mha", "--peers"});
    return Process({.arguments = words, .environment = std::move(environment)}).end();
  };
  check_refusal(with({"--python", "/no/python"}, {}), 4,
                {"--peers: /no/python is no file", "scripts/bench/environment"});
  check_refusal(with({}, {{"HEADLAB_PYTHON", "/no/other"}}), 4, {"/no/other is no file"});
  check_refusal(with({"--python", "/bin/true"}, {{"HEADLAB_PYTHON", "/no/other"}}), 4,
                {"/bin/true: ended before it had answered", "--python PATH"});
}

}  // namespace
}  // namespace headlab::testing::test_command_bench
