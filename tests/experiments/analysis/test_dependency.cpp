// Heads against dependency relations: the golden files, small sentences by hand, and a treebank.
#include <cmath>
#include <limits>

#include "core/errors.h"
#include "experiments/analysis/dependency.h"
#include "experiments/cases/case_file.h"
#include "tests/catch.h"
#include "tests/scratch.h"
#include "tests/treebank_testing.h"

namespace headlab::test_dependency {
namespace {

using testing::difference;

const std::filesystem::path kGolden =
    std::filesystem::path(build::kSourceDir) / "tests/golden/dependency";

// A map of one head that puts all of row i on `to[i]`: [1,1,n,n].
Tensor pointing(const std::vector<int64_t>& to) {
  const auto n = std::ssize(to);
  return at::one_hot(at::tensor(to, at::kLong), n).to(at::kDouble).view({1, 1, n, n});
}

double at_place(const Tensor& t, const std::vector<int64_t>& place) {
  Tensor value = t;
  for (int64_t i : place) value = value[i];
  return value.item<double>();
}

TEST_CASE("heads against a treebank are scored as the authors score them", "[dependency]") {
  int64_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kGolden)) {
    INFO(entry.path().string());
    const auto judged = judge_case(entry.path(), at::kCPU, Backend::kAuto);
    CHECK(!judged.verdicts.empty());
    for (const auto& verdict : judged.verdicts) {
      INFO(verdict_line(verdict));
      CHECK(verdict.pass);
    }
    ++files;
  }
  CHECK(files == 2);
}

TEST_CASE("a case of heads against a treebank fails when a number is wrong", "[dependency]") {
  const Scratch folder;
  for (const auto& [name, tensor] : {std::pair{"align", "in.attention"},
                                     {"align", "out.attention"},
                                     {"ewt_dev_20", "in.attention"},
                                     {"ewt_dev_20", "out.baseline"}}) {
    std::map<std::string, std::string> metadata;
    auto tensors = read_tensors(kGolden / (std::string(name) + ".safetensors"), &metadata);
    tensors.at(tensor).view(-1).slice(0, 0, at::nullopt, 7).add_(0.5);
    write_tensors(folder / "wrong.safetensors", tensors, metadata);
    INFO(name << " " << tensor);
    CHECK_FALSE(all_pass(judge_case(folder / "wrong.safetensors", at::kCPU, {}).verdicts));
  }
}

TEST_CASE("a case of heads against a treebank whose sizes do not fit is wrong data",
          "[dependency]") {
  const Scratch folder;
  std::map<std::string, std::string> metadata;
  const auto good = read_tensors(kGolden / "ewt_dev_20.safetensors", &metadata);
  for (const char* name : {"in.length", "in.heads"}) {
    auto tensors = good;
    tensors[name] = tensors.at(name) + 9;
    write_tensors(folder / "wrong.safetensors", tensors, metadata);
    CHECK_THROWS_AS(judge_case(folder / "wrong.safetensors", at::kCPU, {}), DataError);
  }
  for (const char* text : {"[1, 2", "[\"det\"]"}) {
    auto other = metadata;
    other["relations"] = text;
    write_tensors(folder / "wrong.safetensors", good, other);
    CHECK_THROWS_AS(judge_case(folder / "wrong.safetensors", at::kCPU, {}), DataError);
  }
}

TEST_CASE("attention to a split word is summed, from a split word averaged", "[dependency]") {
  torch::manual_seed(2);
  const auto a = at::rand({2, 5, 5}, at::kFloat).softmax(-1);
  const auto word = at::tensor({0, 1, 1, -1, 2}, at::kLong);
  const auto got = align_words(a, word, 3);
  const auto wide = a.to(at::kDouble);
  CHECK(got.scalar_type() == at::kDouble);
  const auto one = (wide[1][1] + wide[1][2]) / 2;
  CHECK(at_place(got, {1, 1, 1}) == Approx((one[1] + one[2]).item<double>()));
  CHECK(at_place(got, {1, 1, 2}) == Approx(one[4].item<double>()));
  CHECK(at_place(got, {0, 2, 0}) == Approx(at_place(wide, {0, 4, 0})));
  CHECK_THROWS(align_words(a, word, 4));  // no token is of word 3
  // Where every token is of a word, rows still sum to 1.
  const auto whole = align_words(a, at::tensor({0, 0, 1, 2, 2}, at::kLong), 3);
  CHECK(difference(whole.sum(-1), at::ones({2, 3}, at::kDouble)) < 1e-6);
}

// the(det) old(amod) dog(nsubj) barks(root) loudly(advmod); relations of the index above.
const Dependencies kDog{{3, 3, 4, 0, 4}, {1, 2, 3, 4, 5}};
constexpr int64_t kRelations = 6;

TEST_CASE("a head that points at heads is right but at the root", "[dependency]") {
  DependencyScores scores(1, 1, kRelations);
  scores.add(pointing({2, 2, 3, 3, 3}), kDog);
  const auto accuracy = scores.accuracy();
  CHECK(at_place(accuracy, {0, 0, 0, 0}) == Approx(4. / 5));
  for (int64_t r : {1, 2, 3, 5}) CHECK(at_place(accuracy, {0, 0, 0, r}) == 1);
  CHECK(at_place(accuracy, {0, 0, 0, 4}) == 0);
  // Columns: only words 2 and 3 are pointed at; the first of equals wins, the diagonal is none.
  CHECK(at_place(accuracy, {1, 0, 0, 3}) == 0);
  const auto back = scores.accuracy_head_row();
  for (int64_t r : {0, 4}) CHECK(std::isnan(at_place(back, {0, 0, r})));
  for (int64_t r : {1, 2, 3, 5}) CHECK(at_place(back, {0, 0, r}) == 0);
}

TEST_CASE("a head that points at dependents is right by columns and head rows", "[dependency]") {
  DependencyScores scores(1, 1, kRelations);
  scores.add(pointing({0, 1, 0, 2, 4}), kDog);
  const auto accuracy = scores.accuracy();
  CHECK(at_place(accuracy, {1, 0, 0, 1}) == 1);  // the <- dog
  CHECK(at_place(accuracy, {1, 0, 0, 3}) == 1);  // dog <- barks
  CHECK(at_place(accuracy, {1, 0, 0, 2}) == 0);
  const auto back = scores.accuracy_head_row();
  CHECK(at_place(back, {0, 0, 1}) == 1);  // dog's row is at its determiner, not its adjective
  CHECK(at_place(back, {0, 0, 2}) == 0);
  CHECK(at_place(back, {0, 0, 3}) == 1);
  CHECK(at_place(back, {0, 0, 5}) == 0);
}

TEST_CASE("a head word with several dependents of a relation counts once", "[dependency]") {
  const Dependencies words{{2, 0, 2, 2, 4}, {1, 2, 1, 1, 1}};
  DependencyScores scores(1, 1, 3);
  scores.add(pointing({0, 3, 0, 0, 0}), words);
  CHECK(at_place(scores.accuracy_head_row(), {0, 0, 1}) == 0.5);  // of words 2 and 4
}

TEST_CASE("sentences add up, ties go to the first word, one word is never right", "[dependency]") {
  DependencyScores scores(1, 1, kRelations);
  scores.add(at::full({1, 1, 5, 5}, 0.2, at::kDouble), kDog);  // all point at word 1, it at word 2
  CHECK(at_place(scores.accuracy(), {0, 0, 0, 0}) == 0);
  scores.add(at::ones({1, 1, 1, 1}, at::kDouble), {{0}, {4}});
  scores.add(at::full({1, 1, 2, 2}, 0.5, at::kFloat), {{0, 1}, {4, 3}});
  CHECK(at_place(scores.accuracy(), {0, 0, 0, 0}) == Approx(1. / 8));
  CHECK(at_place(scores.accuracy(), {0, 0, 0, 3}) == 0.5);
  CHECK(at_place(scores.accuracy(), {1, 0, 0, 3}) == 0.5);
  CHECK(at_place(scores.accuracy(), {0, 0, 0, 4}) == 0);
  CHECK(std::isnan(at_place(DependencyScores(1, 1, 2).accuracy(), {0, 0, 0, 0})));
}

TEST_CASE("words that do not fit are refused", "[dependency]") {
  DependencyScores scores(1, 1, kRelations);
  const auto map = pointing({0, 0});
  CHECK_THROWS(scores.add(map, kDog));
  CHECK_THROWS(scores.add(map, {{3, 0}, {1, 2}}));
  CHECK_THROWS(scores.add(map, {{2, 0}, {0, 2}}));  // "all" is no word's relation
  CHECK_THROWS(scores.add(map, {{2, 0}, {1, 6}}));
  CHECK_THROWS(scores.add(map, {{2, 0}, {1}}));
}

TEST_CASE("the commonest place of ties is the nearer one, then the one before", "[dependency]") {
  DependencyBaselines baselines(3, {-1, 1});
  baselines.add({{2, 0, 2, 1, 1}, {1, 2, 1, 1, 1}});  // places 1, -1, -3, -4
  const auto place = baselines.relative_place();
  for (int64_t direction : {0, 1}) {
    CHECK(at_place(place, {0, direction, 1}) == 0.25);
    CHECK(at_place(place, {1, direction, 1}) == -1);
  }
  for (int64_t r : {0, 2}) CHECK(std::isnan(at_place(place, {0, 0, r})));
  CHECK(at_place(baselines.count(), {0}) == 5);
}

TEST_CASE("baselines of a real treebank are those of an independent script", "[dependency]") {
  const auto file = testing::english_treebank();
  if (file.empty()) return;
  const auto sentences = read_treebank(file);
  const auto relations = relations_of(sentences);
  CHECK(relations.size() == 37);
  const auto place_of = [&](const std::string& relation) {
    return std::find(relations.begin(), relations.end(), relation) - relations.begin();
  };
  DependencyBaselines baselines(std::ssize(relations), {-3, -2, -1, 0, 1, 2});
  for (const auto& sentence : sentences) {
    Dependencies words;
    for (const auto& word : sentence.words) {
      words.heads.push_back(word.head);
      words.relations.push_back(place_of(word.relation));
    }
    baselines.add(words);
  }
  struct Known {
    const char* relation;
    int64_t count;
    std::vector<double> fixed;
    double share, place;
  };
  const double none = std::numeric_limits<double>::quiet_NaN();
  const std::vector<Known> known{
      {"all", 25147, {.102120, .116356, .100489, 0, .290890, .143437}, none, none},
      {"det", 1841, {0, 0, 0, 0, .588810, .282455}, .588810, 1},
      {"nsubj", 2137, {.012167, .011699, .007955, 0, .338793, .273280}, .338793, 1},
      {"obj", 1211, {.175888, .357556, .326177, 0, 0, .013212}, .357556, -2},
      {"amod", 1326, {.003017, .000754, .009804, 0, .746606, .180241}, .746606, 1},
      {"conj", 916, {.145197, .266376, .006550, 0, 0, 0}, .266376, -2},
      {"root", 2001, {.605197, .452774, .240880, 0, 0, 0}, none, none}};
  const auto fixed = baselines.fixed_offset(), relative = baselines.relative_place();
  for (const auto& k : known) {
    const int64_t r = place_of(k.relation);
    INFO(k.relation);
    CHECK(at_place(baselines.count(), {r}) == k.count);
    for (int64_t o = 0; o < 6; ++o) CHECK(std::abs(at_place(fixed, {o, r}) - k.fixed[o]) < 1e-6);
    for (int64_t direction : {0, 1}) {
      const double share = at_place(relative, {0, direction, r});
      const double place = at_place(relative, {1, direction, r});
      if (std::isnan(k.share)) {
        CHECK(std::isnan(share));
        continue;
      }
      CHECK(std::abs(share - k.share) < 1e-6);
      CHECK(place == (direction == 0 ? k.place : -k.place));
    }
  }
}

}  // namespace
}  // namespace headlab::test_dependency
