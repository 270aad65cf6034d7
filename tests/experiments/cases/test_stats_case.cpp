// The authors' numbers of head statistics (format stats-1), files of maps, and the identities of
// what is streamed.
#include "core/errors.h"
#include "core/torch.h"
#include "experiments/analysis/maps/map_file.h"
#include "experiments/cases/case_file.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/heads_testing.h"
#include "tests/scratch.h"

namespace headlab::test_stats_case {
using namespace testing;
using Catch::Contains;

namespace {

namespace fs = std::filesystem;
using Metadata = std::map<std::string, std::string>;

const fs::path kFolder = fs::path(build::kSourceDir) / "tests/golden/statistics";

std::vector<fs::path> stats_files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    Metadata metadata;
    read_tensors(entry.path(), &metadata);
    if (metadata["headlab_case"] == "stats-1") files.push_back(entry.path());
  }
  return files;
}

// Random maps [2,3,4,9,9].
NamedTensors maps(bool causal = true) {
  auto z = random({2, 3, 4, 9, 9});
  if (causal) z = z.masked_fill(at::ones({9, 9}, at::kBool).triu(1), -INFINITY);
  return {{"in.attention", at::softmax(z, -1)}};
}

std::string refusal(const NamedTensors& tensors, const Metadata& metadata = {}) {
  try {
    MapFile("maps", tensors, metadata);
  } catch (const DataError& e) {
    return e.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("the authors' statistics are reproduced", "[golden][statistics]") {
  const auto files = stats_files();
  REQUIRE(files.size() >= 5);
  for (const auto& file : files) {
    const auto judged = judge_case(file, at::kCPU, Backend::kAuto);
    REQUIRE(!judged.verdicts.empty());
    for (const auto& verdict : judged.verdicts) {
      INFO(file.string() << "\n" << verdict_line(verdict));
      CHECK(verdict.pass);
    }
  }
}

TEST_CASE("a changed map fails its case", "[golden][statistics]") {
  const Scratch scratch;
  for (const auto& file : stats_files()) {
    Metadata metadata;
    auto tensors = read_tensors(file, &metadata);
    auto& a = tensors.at("in.attention");
    a = a.clone();
    auto row = a[0][0][1][3];
    row.mul_(0.999);
    row[0] += 0.001;
    metadata.erase("format");
    write_tensors(scratch / "changed", tensors, metadata);
    INFO(file.string());
    CHECK_FALSE(all_pass(judge_case(scratch / "changed", at::kCPU, Backend::kAuto).verdicts));
  }
}

TEST_CASE("identities of uniform heads and bounds of random ones", "[statistics]") {
  const auto seen = at::ones({9, 9}, at::kDouble).tril();
  const auto uniform = (seen / seen.sum(-1, true)).expand({1, 1, 1, 9, 9});
  const MapFile file("uniform", {{"in.attention", uniform}}, {{"causal", "true"}});
  const auto s = file.values({.names = file.statistics()});
  const auto n = at::arange(1, 10, at::kDouble);
  CHECK(s.at("entropy")[0] == Approx(n.log().mean().item<double>()));
  CHECK(s.at("participation_ratio")[0] == Approx(n.mean().item<double>()));
  CHECK(s.at("mean_distance")[0] == Approx(((n - 1) / 2).mean().item<double>()));
  CHECK(s.at("entropy_normalized")[0] == Approx(1));
  for (int seed = 0; seed < 10; ++seed) {
    torch::manual_seed(seed);
    const MapFile random("random", maps(seed % 2), {{"causal", seed % 2 ? "true" : "false"}});
    const auto r = random.values({.names = random.statistics()});
    for (size_t h = 0; h < 8; ++h) {
      REQUIRE(r.at("entropy_normalized")[h] >= 0);
      REQUIRE(r.at("entropy_normalized")[h] <= 1);
      REQUIRE(r.at("max_weight")[h] <= 1);
      REQUIRE(r.at("max_weight")[h] * r.at("participation_ratio")[h] >= 1 - 1e-12);
      REQUIRE(r.at("offset_variance")[h] >= -1e-12);
      REQUIRE(r.at("mean_distance")[h] >= std::abs(r.at("signed_offset")[h]) - 1e-12);
    }
  }
}

TEST_CASE("order and padding of a file's examples change nothing", "[statistics]") {
  auto tensors = maps();
  tensors["in.length"] = at::tensor({9, 5, 2}, at::kLong);
  tensors["in.tokens"] = at::randint(0, 4, {3, 9}, at::kLong);
  const Metadata causal{{"causal", "true"}};
  const auto values = [&](const NamedTensors& of) {
    const MapFile file("maps", of, causal);
    return file.values({.names = file.statistics()});
  };
  const auto whole = values(tensors);
  auto other = tensors;
  const auto order = at::tensor({2, 0, 1}, at::kLong);
  other["in.attention"] = tensors.at("in.attention").index_select(1, order);
  for (const char* name : {"in.length", "in.tokens"})
    other[name] = tensors.at(name).index_select(0, order);
  auto padded = tensors;
  padded["in.attention"] = at::constant_pad_nd(tensors.at("in.attention"), {0, 4, 0, 4}, NAN);
  padded["in.tokens"] = at::constant_pad_nd(tensors.at("in.tokens"), {0, 4}, 3);
  const auto permuted = values(other), longer = values(padded);
  for (const auto& [name, of] : whole)
    for (size_t n = 0; n < of.size(); ++n) {
      INFO(name << "[" << n << "]");
      if (std::isnan(of[n])) {
        REQUIRE(std::isnan(permuted.at(name)[n]));
        REQUIRE(std::isnan(longer.at(name)[n]));
      } else {
        REQUIRE(permuted.at(name)[n] == Approx(of[n]).epsilon(1e-12).margin(1e-12));
        REQUIRE(longer.at(name)[n] == of[n]);
      }
    }
}

TEST_CASE("statistics exist where their facts are given", "[statistics]") {
  const auto has = [](const MapFile& file, const std::string& name) {
    const auto names = file.statistics();
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const MapFile plain("maps", maps(), {});
  CHECK(has(plain, "prev_token"));
  for (const char* name : {"cls_mass", "sep_from_sep", "induction", "rare_token", "grid_distance",
                           "value_weighted_norm", "output_norm"})
    CHECK_FALSE(has(plain, name));
  auto cross = maps(false);
  cross["in.key_length"] = at::tensor({9, 9, 9}, at::kLong);
  for (const char* name : {"prev_token", "mean_distance", "positional_share", "first_token"})
    CHECK_FALSE(has(MapFile("maps", cross, {}), name));
  CHECK(has(MapFile("maps", cross, {}), "entropy"));
}

TEST_CASE("half and single precision are read as they are", "[statistics]") {
  const auto exact = maps();
  const auto entropy = [&](at::ScalarType type) {
    NamedTensors tensors{{"in.attention", exact.at("in.attention").to(type)}};
    const MapFile file("maps", tensors, {{"causal", "true"}});
    return file.values({.names = {"entropy"}}).at("entropy")[0];
  };
  CHECK(entropy(at::kFloat) == Approx(entropy(at::kDouble)).epsilon(1e-6));
  CHECK(entropy(at::kHalf) == Approx(entropy(at::kDouble)).epsilon(1e-3));
}

TEST_CASE("what is no attention is refused by name and place", "[statistics]") {
  const Metadata causal{{"causal", "true"}};
  CHECK_THAT(refusal({}), Contains("maps: ") && Contains("in.attention"));
  CHECK_THAT(refusal({{"in.attention", at::ones({2, 3, 4})}}), Contains("[2,3,4]"));
  auto tensors = maps(false);
  CHECK(refusal(tensors) == "none");
  CHECK_THAT(refusal(tensors, causal), Contains("layer 0, example 0, head 0, query 0") &&
                                           Contains("1 keys") && Contains("causal") &&
                                           Contains("not 1"));
  auto off = tensors;
  off["in.attention"] = off.at("in.attention").clone();
  off["in.attention"][1][2][3][4] *= 0.5;
  CHECK_THAT(refusal(off), Contains("layer 1, example 2, head 3, query 4") && Contains("0.5"));
  off["in.length"] = at::tensor({9, 9, 4}, at::kLong);  // the keys beyond it count too
  CHECK_THAT(refusal(off), Contains("example 2"));
  off = tensors;
  off["in.attention"] = off.at("in.attention").clone();
  off["in.attention"][0][1][2][3][0] -= 2;
  off["in.attention"][0][1][2][3][1] += 2;
  CHECK_THAT(refusal(off), Contains("head 2, query 3") && Contains("negative"));
  off["in.attention"][0][1][2][3][0] = NAN;
  CHECK_THAT(refusal(off), Contains("head 2, query 3") && Contains("nan"));
  for (const auto& [name, wrong] : NamedTensors{{"in.length", at::tensor({9, 10, 3}, at::kLong)},
                                                {"in.tokens", at::zeros({3, 8}, at::kLong)},
                                                {"in.class", at::zeros({3, 9})},
                                                {"in.frequency_rank", at::zeros({9}, at::kLong)}}) {
    auto more = tensors;
    more[name] = wrong;
    CHECK_THAT(refusal(more), Contains(name));
  }
  for (const auto& [key, value] :
       Metadata{{"causal", "maybe"}, {"top_k", "0"}, {"grid", "[3]"}, {"grid", "[2, 4]"}})
    CHECK_THAT(refusal(tensors, {{key, value}}), Contains(key));
}

TEST_CASE("maps whose upper triangle is empty are causal unless somebody says otherwise") {
  const auto causal = [](const NamedTensors& tensors, const Metadata& metadata = {},
                         std::optional<bool> option = {}) {
    const MapFile file("maps", tensors, metadata, option);
    return std::pair(file.context().causal, file.causal_from);
  };
  using Found = std::pair<bool, std::string>;
  CHECK(causal(maps()) == Found{true, "weights"});
  CHECK(causal(maps(false)) == Found{false, "weights"});
  CHECK(causal(maps(), {{"causal", "false"}}) == Found{false, "metadata"});
  CHECK(causal(maps(), {{"causal", "false"}}, true) == Found{true, "option"});
  CHECK(causal(maps(), {}, false) == Found{false, "option"});
  // What lies beyond a length says nothing, and a single token has no later one.
  auto padded = maps();
  padded["in.attention"] = at::constant_pad_nd(padded.at("in.attention"), {0, 4, 0, 4}, 0.5);
  padded["in.length"] = at::tensor({9, 9, 9}, at::kLong);
  CHECK(causal(padded) == Found{true, "weights"});
  CHECK_FALSE(causal({{"in.attention", at::ones({1, 1, 1, 1, 1})}}).first);
  auto cross = maps();
  cross["in.key_length"] = at::tensor({9, 9, 9}, at::kLong);
  CHECK_FALSE(causal(cross).first);
  CHECK_THROWS_WITH(causal(cross, {}, true), Contains("the keys are another sequence"));
  const auto entropy = [](const NamedTensors& tensors, const Metadata& metadata) {
    const MapFile file("maps", tensors, metadata);
    return file.values({.names = {"entropy_normalized"}}).at("entropy_normalized");
  };
  CHECK(entropy(maps(), {}) != entropy(maps(), {{"causal", "false"}}));
}

TEST_CASE("sums of rows are judged by the type that the weights were stored in") {
  const auto seen = at::ones({64, 64}, at::kDouble).tril();
  const auto exact = (seen / seen.sum(-1, true)).expand({1, 1, 1, 64, 64});
  const auto accepted = [](const Tensor& a) { return refusal({{"in.attention", a}}) == "none"; };
  // As headlab logs them: up to half a part of 65534 off at each of 64 keys.
  const auto packed = (exact * 65534).round() / 65534;
  REQUIRE((packed.sum(-1) - 1).abs().max().item<double>() > 1e-4);
  for (const auto type : {at::kDouble, at::kFloat}) {
    CHECK(accepted(exact.to(type)));
    CHECK(accepted(packed.to(type)));
    CHECK(accepted(exact.to(at::kHalf).to(type)));
    CHECK(accepted(exact.to(at::kBFloat16).to(type)));
  }
  CHECK(accepted(exact.to(at::kFloat).to(at::kDouble)));
  // No type has rounded these.
  CHECK_FALSE(accepted(exact * (1 + 1e-5)));
  CHECK_FALSE(accepted((exact * (1 + 3e-4)).to(at::kFloat)));
  CHECK_FALSE(accepted(((exact * 1.002) * 65534).round() / 65534));
  CHECK_FALSE(accepted((exact * 1.05).to(at::kHalf)));
}

}  // namespace headlab::test_stats_case
