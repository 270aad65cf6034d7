// The tasks' draws against the authors' own (tests/golden/tasks, from HazyResearch/zoology and
// athms/mad-lab): of each statistic of a sequence mean and deviation over theirs, and over ours.
#include <cmath>

#include "experiments/cases/case_file.h"
#include "experiments/files/safetensors.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/rule_task_testing.h"

namespace headlab::test_task_distributions {
using namespace testing;
using Ids = std::vector<int64_t>;
using Statistics = std::map<std::string, std::vector<double>>;

namespace {

const fs::path kFolder = fs::path(build::kSourceDir) / "tests/golden/tasks";
constexpr int64_t kDraws = 4000;

int64_t option(const std::string& config, const std::string& name) {
  const auto at = config.find("\"" + name + "\": ");
  REQUIRE(at != std::string::npos);
  return std::stoll(config.substr(at + name.size() + 4));
}

Statistics counts_of(const Ids& ids, int64_t symbols) {
  std::vector<double> token(symbols);
  for (const int64_t id : ids) ++token[id];
  return {{"token", token}};
}

Statistics of_recall(const std::string& config, const Ids& ids, const Ids& targets) {
  const int64_t P = option(config, "pairs"), U = option(config, "updates"), s = 2 * (P + U);
  const int64_t T = std::ssize(ids);
  std::map<int64_t, int64_t> last_pair;
  for (int64_t t = 0; t < s; t += 2) last_pair[ids[t]] = t;
  Statistics all{{"slot", std::vector<double>((T - s) / 2)},
                 {"first_slot", std::vector<double>((T - s) / 2)},
                 {"updated", std::vector<double>(P)}};
  double reach = 0, bound = 0;
  for (int64_t t = s; t < T; ++t) {
    if (targets[t] < 0) {
      bound += last_pair.contains(ids[t]);
      continue;
    }
    all["slot"][(t - s) / 2] = 1;
    if (ids[t] == ids[0]) all["first_slot"][(t - s) / 2] = 1;
    reach += static_cast<double>(t - last_pair.at(ids[t])) / static_cast<double>(P);
  }
  for (int64_t i = 0; i < P; ++i) all["updated"][i] = last_pair.at(ids[2 * i]) != 2 * i;
  all["reach"] = {reach}, all["filler_bound"] = {bound};
  return all;
}

Statistics of_pairs(const std::string& config, const Ids& ids, const Ids& targets) {
  auto all = counts_of(ids, option(config, "symbols"));
  std::vector<double> answer, gap(10);
  double answers = 0;
  std::map<int64_t, int64_t> shown;
  for (int64_t t = 0; t < std::ssize(ids); ++t) {
    answer.push_back(targets[t] >= 0);
    answers += answer.back();
    if (targets[t] >= 0) ++gap[std::min<int64_t>((t - shown.at(ids[t])) / 2, 10) - 1];
    if (t % 2 == 0) shown[ids[t]] = t;
  }
  all["answer"] = answer, all["answers"] = {answers}, all["gap"] = gap;
  return all;
}

Statistics of_fuzzy(const std::string& config, const Ids& ids, const Ids& targets) {
  const int64_t V = option(config, "symbols"), keys = (V - 1) / 2;
  auto all = counts_of(ids, V);
  auto tokens = ids;
  tokens.push_back(targets.back());
  int64_t t = 0;
  while (tokens[t] == V - 1) ++t;
  all["pads"] = std::vector<double>(10);
  all["pads"][t] = 1;
  all["key_length"] = std::vector<double>(option(config, "key_length"));
  all["value_length"] = std::vector<double>(option(config, "value_length"));
  const auto run = [&](bool key) {
    Ids tuple;
    while (t < std::ssize(tokens) && (tokens[t] < keys) == key) tuple.push_back(tokens[t++]);
    return tuple;
  };
  std::map<Ids, Ids> pairs;
  double count = 0;
  bool seen = false;
  while (t < std::ssize(tokens)) {
    const auto key = run(true), value = run(false);
    ++all["key_length"][key.size() - 1], ++all["value_length"][value.size() - 1], ++count;
    seen = !pairs.try_emplace(key, value).second;
  }
  double answers = 0;
  for (const int64_t target : targets) answers += target >= 0;
  all["pairs"] = {count}, all["unseen"] = {seen ? 0.0 : 1.0}, all["answers"] = {answers};
  return all;
}

Statistics of_copying(const std::string& config, const Ids& ids, const Ids&) {
  const int64_t V = option(config, "symbols");
  auto all = counts_of(ids, V);
  std::vector<double> blanks{0};
  for (const int64_t id : ids) {
    if (id == V - 1) break;
    if (id == V - 2)
      ++blanks.back();
    else
      blanks.push_back(0);
  }
  blanks.pop_back();
  all["blanks_before"] = blanks;
  return all;
}

Statistics statistics(const std::string& task, const std::string& config, const Ids& ids,
                      const Ids& targets) {
  if (task == "recall") return of_recall(config, ids, targets);
  if (task == "fuzzy_recall") return of_fuzzy(config, ids, targets);
  if (task == "selective_copying") return of_copying(config, ids, targets);
  if (task.ends_with("_recall")) return of_pairs(config, ids, targets);
  return counts_of(ids, option(config, "symbols"));
}

struct Moments {
  std::vector<double> sum, squares;
  void add(const std::vector<double>& values) {
    sum.resize(values.size()), squares.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i)
      sum[i] += values[i], squares[i] += values[i] * values[i];
  }
};

// By the labels of an evaluation, whatever the sequences are drawn for.
std::map<std::string, Moments> drawn(const CaseFile& file) {
  const auto& task = file.text("task");
  const auto& config = file.text("config");
  const auto data = open(config.substr(1, config.size() - 2) + ", eval_examples: 4000");
  const bool as_trained = config.find("\"next\"") != std::string::npos;
  const Batch batch = as_trained ? data->train_batch(1337, 0, 0, kDraws)
                                 : data->eval_batch(Split::kValidation, 0, kDraws);
  std::map<std::string, Moments> all;
  for (int64_t n = 0; n < kDraws; ++n) {
    const auto ids = row(batch.ids, n);
    auto targets = row(batch.targets, n);
    if (as_trained)
      targets = dynamic_cast<const RuleTask&>(*data).label({.ids = ids, .last = targets.back()},
                                                           /*evaluated=*/true);
    for (const auto& [name, values] : statistics(task, config, ids, targets)) all[name].add(values);
  }
  return all;
}

}  // namespace

TEST_CASE("sequences are drawn from the authors' distributions", "[golden][data]") {
  size_t files = 0, compared = 0;
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    ++files;
    const CaseFile file(entry.path());
    const auto ours = drawn(file);
    const double M = file.number("sequences"), n = kDraws;
    for (const auto& [name, mean] : file.expected) {
      if (!name.ends_with(".mean")) continue;
      const auto statistic = name.substr(4, name.size() - 9);
      const auto& sums = ours.at(statistic);
      const auto std = file.expected.at("out." + statistic + ".std");
      REQUIRE(mean.numel() == std::ssize(sums.sum));
      for (int64_t i = 0; i < mean.numel(); ++i) {
        const double theirs = mean[i].item<double>(), spread = std[i].item<double>();
        const double difference = std::abs(sums.sum[i] / n - theirs), variance = spread * spread;
        INFO(entry.path().filename() << ": " << statistic << "[" << i << "] is " << sums.sum[i] / n
                                     << ", theirs " << theirs);
        CHECK(difference <= (variance * M < file.number("small")
                                 ? file.number("absolute")
                                 : file.number("sigmas") * std::sqrt(variance / M + variance / n)));
        ++compared;
      }
    }
  }
  CHECK(files >= 11);
  CHECK(compared > 500);
}

}  // namespace headlab::test_task_distributions
