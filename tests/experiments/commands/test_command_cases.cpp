// The commands that judge files of expected numbers: layer, check.
#include <cmath>

#include "tests/command_testing.h"

namespace headlab::testing::test_command_cases {
namespace {

using Catch::Contains;

const std::string kCase = (kGolden / "mha/llama_gqa.safetensors").string();

std::set<std::string> names_of(const SafetensorsFile& file) {
  std::set<std::string> names;
  for (const auto& entry : file.entries()) names.insert(entry.name);
  return names;
}

// The case with the sign of one number of one tensor turned, the largest.
void write_perturbed_case(const std::filesystem::path& path, const std::string& name) {
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

}  // namespace
}  // namespace headlab::testing::test_command_cases
