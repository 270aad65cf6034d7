// What models are held against: numbers counted by hand, laws over every kind of data.
#include <cmath>
#include <numeric>

#include "experiments/data/data_description.h"
#include "experiments/data/given/given_text.h"
#include "experiments/data/references.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/data_testing.h"
#include "tests/images_testing.h"
#include "tests/task_testing.h"

namespace headlab::test_references {
namespace {

using namespace testing;

double value(const References& references, const std::string& name,
             const std::string& metric = "loss") {
  const auto* found = references.find(name);
  return found ? found->value(metric).value() : std::nan("");
}

std::vector<std::string> names(const References& references) {
  std::vector<std::string> names;
  for (const auto& one : references.all) names.push_back(one.name);
  return names;
}

using Names = std::vector<std::string>;

std::string words(int lines) {
  std::string text;
  for (int n = 0; n < lines; ++n)
    text += std::string("the cat ") + (n % 3 ? "sat on the mat\n" : "saw a dog on the hill\n");
  return text;
}

// A small source of every kind, of the files that it writes.
std::map<std::string, std::string> small_sources(const Folder& folder) {
  folder.write("text.txt", words(40));
  folder.write("target.txt", words(40));
  folder.write("meta.json", R"({"vocab_size": 5})");
  const std::vector<uint16_t> tokens{0, 1, 2, 0, 1, 3, 0, 1, 2, 0, 1, 4, 0};
  folder.write_tokens("train.bin", tokens);
  folder.write_tokens("val.bin", tokens);
  folder.write_arrays("arrays", "train", 0, 40),
      folder.write_arrays("arrays", "validation", 40, 20);
  write_images(folder, 20);
  for (const char* name : {"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4",
                           "data_batch_5", "test_batch"})
    folder.write(std::string(name) + ".bin", counting(1 + 32 * 32 * 3, 10, 3));
  folder.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\nsat\non\nmat\n");
  const std::string sizes = "eval_examples: 60, context: ";
  return {{"char", "path: text.txt, context: 8"},
          {"bytes", "path: text.txt, context: 8"},
          {"words", "path: text.txt, context: 8"},
          {"text", "path: text.txt, context: 8, tokenizer: ."},
          {"tokens", "path: ., context: 4"},
          {"lines",
           "source: text.txt, target: target.txt, validation_source: text.txt, "
           "validation_target: target.txt, context: 16"},
          {"arrays", "path: arrays"},
          {"mnist", "images: images, labels: labels"},
          {"cifar10", "path: ."},
          {"digits", ""},
          {"recall", sizes + "32, symbols: 20, pairs: 4"},
          {"copy", sizes + "16, symbols: 7"},
          {"induction", sizes + "16, symbols: 7"},
          {"first_token", sizes + "16, symbols: 7"},
          {"in_context_recall", sizes + "31, symbols: 10"},
          {"noisy_recall", sizes + "31, symbols: 14, noise_symbols: 4"},
          {"fuzzy_recall", sizes + "40, symbols: 10"},
          {"selective_copying", sizes + "20, symbols: 8"},
          {"compression", sizes + "12, symbols: 6"},
          {"memorization", sizes + "16, symbols: 13"}};
}

// More options of some kinds, where answers are others.
std::vector<std::pair<std::string, std::string>> all_sources(const Folder& folder) {
  const auto small = small_sources(folder);
  std::vector<std::pair<std::string, std::string>> all(small.begin(), small.end());
  for (const char* more : {"updates: 2", "fill: blank, symbols: 40", "fill: all, symbols: 40"})
    all.emplace_back(
        "recall",
        std::string("eval_examples: 60, context: 32, pairs: 4, ") + more +
            (std::string(more).find("symbols") == std::string::npos ? ", symbols: 20" : ""));
  for (const char* kind : {"words", "text"})
    all.emplace_back(kind, small.at(kind) + ", objective: masked");
  return all;
}

std::shared_ptr<DataSource> opened(const std::string& kind, const std::string& options,
                                   const Folder& folder) {
  return open("kind: " + kind + (options.empty() ? "" : ", ") + options, folder.path());
}

Batch whole_split(const DataSource& data) {
  return data.eval_batch(Split::kValidation, 0, data.examples(Split::kValidation));
}

// use(data, all of its validation) of every kind.
template <class Use>
void each_source(const Use& use) {
  const Folder folder;
  for (const auto& [kind, options] : all_sources(folder)) {
    INFO(kind << " " << options);
    const auto data = opened(kind, options, folder);
    use(*data, whole_split(*data));
  }
}

Tensor answers_of_each(const DataSource& data, const Batch& batch) {
  auto sizes = batch.targets.sizes().vec();
  const auto among = answers_of(data, batch).among;
  sizes.push_back(among.size(-1));
  return among.expand(sizes);  // [B,T,V] or [B,V]
}

}  // namespace

TEST_CASE("references of a text are what hands count", "[data]") {
  const Folder folder;
  folder.write("meta.json", R"({"vocab_size": 4})");
  folder.write_tokens<uint16_t>("train.bin", {0, 1, 0, 1, 0, 2, 0, 1, 0});
  folder.write_tokens<uint16_t>("val.bin", {1, 0, 1, 2, 0, 3, 0, 2, 1});
  const auto found =
      references_of(*open("kind: tokens, path: ., context: 4", folder.path()), Split::kValidation);
  CHECK(names(found) == Names{"chance", "unigram", "bigram"});
  CHECK(found.tokens == 8);
  CHECK(found.examples == 2);
  CHECK(value(found, "chance") == Approx(std::log(4)));
  CHECK(value(found, "chance", "accuracy") == Approx(0.25));
  // Behind the first of training: 0 four times, 1 three, 2 once, 3 never; one more of each.
  const auto ln = [](double p) { return std::log(p); };
  CHECK(value(found, "unigram") ==
        Approx(-(3 * ln(5. / 12) + 2 * ln(4. / 12) + 2 * ln(2. / 12) + ln(1. / 12)) / 8));
  CHECK(value(found, "unigram", "accuracy") == Approx(3. / 8));  // 0 is named
  // The weight: test_ngrams.cpp. Pairs: 1 0, 0 1, 1 2, 2 0, 0 3, 3 0, 0 2, 2 1.
  const double w = (86 + std::sqrt(86.0 * 86 + 4 * 637.0 * 309)) / (2 * 637), r = 1 - w;
  CHECK(value(found, "bigram") ==
        Approx(-(ln(w + r * 5 / 12) + ln(w * 3 / 4 + r / 3) + ln(r / 6) + ln(w + r * 5 / 12) +
                 ln(r / 12) + ln(5. / 12) + ln(w / 4 + r / 6) + ln(r / 3)) /
               8)
            .margin(1e-5));
  CHECK(value(found, "bigram", "accuracy") == Approx(4. / 8));
  const auto json = references_json(found);
  CHECK(json.at("chance").at("loss") == value(found, "chance"));
  CHECK(json.at("chance").at("comment") == "a guess: any of 4 tokens");
  CHECK(json.at("bigram").at("accuracy") == 0.5);
  CHECK(json.at("units") == nlohmann::ordered_json{{"loss", "nat"}, {"accuracy", "1"}});
  CHECK(json.at("measured_on").at("tokens") == 8);
  CHECK(json.at("measured_on").at("split") == "val");
}

TEST_CASE("the commonest class of training is named for every image", "[data]") {
  const Folder folder;
  write_images(folder, 5);
  folder.write("labels", idx_header({5}) + std::string{3, 3, 1, 2, 3});  // the last one validates
  const auto found = references_of(
      *open("kind: mnist, images: images, labels: labels", folder.path()), Split::kValidation);
  CHECK(names(found) == Names{"chance", "commonest"});
  CHECK(value(found, "chance") == Approx(std::log(10)));
  CHECK(value(found, "commonest") == Approx(-std::log(3. / 14)));
  CHECK(value(found, "commonest", "accuracy") == 1);
  CHECK(value(found, "chance", "accuracy") == Approx(0.1));
}

TEST_CASE("of masked words all of training are counted, those that are shown, too", "[data]") {
  const Folder folder;
  std::string text;
  for (int n = 0; n < 30; ++n) text += "a a b ";
  folder.write("text.txt", text);
  const auto data =
      open("kind: words, path: text.txt, validation: text.txt, context: 5, objective: masked",
           folder.path());
  const auto found = references_of(*data, Split::kValidation);
  CHECK(names(found) == Names{"chance", "unigram"});
  const auto targets = whole_split(*data).targets;
  const auto count = [&](const char* word) {
    return targets.eq(data->tokenizer()->encode(word, "test").ids.at(0)).sum().item<double>();
  };
  const double a = count("a"), b = count("b");
  REQUIRE(a > 0);
  REQUIRE(b > 0);
  REQUIRE(a + b == found.tokens);
  const auto possible = answers_of(*data, whole_split(*data)).among.sum().item<double>();
  CHECK(value(found, "chance") == Approx(std::log(possible)));
  CHECK(
      value(found, "unigram") ==
      Approx(-(a * std::log(61 / (90 + possible)) + b * std::log(31 / (90 + possible))) / (a + b)));
}

TEST_CASE("in recall a guess is among the values of the example", "[data]") {
  const auto data = open("kind: recall, context: 32, symbols: 20, pairs: 4, eval_examples: 50");
  const auto found = references_of(*data, Split::kValidation);
  CHECK(names(found) == Names{"chance", "place"});
  CHECK(value(found, "chance") == Approx(std::log(4)));
  CHECK(value(found, "chance", "accuracy") == Approx(0.25));
  CHECK(value(found, "chance", "example_accuracy") == Approx(0.25));
  CHECK(found.find("chance")->how == "a guess: any of the values of an example's 4 keys");
  CHECK(found.tokens == 200);
  const auto batch = data->eval_batch(Split::kValidation, 0, 1);
  const auto among = answers_of(*data, batch).among[0][0];
  CHECK(among.sum().item<int64_t>() == 4);
  for (const int64_t t : {1, 3, 5, 7}) CHECK(among[batch.ids[0][t].item<int64_t>()].item<bool>());
}

TEST_CASE("in recall the place of a query foretells its pair a little", "[data]") {
  // Simulated apart from this, 40,000 examples: the likeliest pair of each place is right in .309
  // of cases where queries come by a power law, in .255 where they come anywhere.
  const auto found_of = [](const std::string& power) {
    return references_of(*open("kind: recall, context: 32, symbols: 256, pairs: 4, eval_examples: "
                               "4000, power: " +
                               power),
                         Split::kValidation);
  };
  const auto near = found_of("0.01"), anywhere = found_of("1");
  CHECK(value(near, "place", "accuracy") == Approx(0.309).margin(0.015));
  CHECK(value(anywhere, "place", "accuracy") == Approx(0.255).margin(0.015));
  CHECK(value(near, "place") < value(near, "chance"));
  CHECK(near.guess("accuracy", true)->name == "place");
  CHECK(near.guess("loss", false)->name == "place");
}

TEST_CASE("in compression a guess knows the last place", "[data]") {
  const auto found = references_of(
      *open("kind: compression, symbols: 6, context: 12, eval_examples: 50"), Split::kValidation);
  CHECK(value(found, "chance") == Approx(11. / 12 * std::log(5)));
  CHECK(value(found, "chance", "accuracy") == Approx((1 + 11. / 5) / 12));
  CHECK(value(found, "chance", "macro_accuracy") == Approx((1 + 5 * 0.2) / 6));
}

TEST_CASE("targets are among the answers that their data state", "[data]") {
  each_source([](const DataSource& data, const Batch& batch) {
    const auto scored = data.task().is_scored(batch);
    const auto may_be =
        answers_of_each(data, batch).gather(-1, batch.targets.clamp_min(0).unsqueeze(-1));
    CHECK(may_be.squeeze(-1).logical_or(scored.logical_not()).all().item<bool>());
    CHECK(scored.any().item<bool>());
  });
}

TEST_CASE("chance is the loss of a uniform prediction, as the task measures it", "[data]") {
  each_source([](const DataSource& data, const Batch& batch) {
    const auto among = answers_of_each(data, batch);
    const auto logits =
        at::zeros(among.sizes(), at::kDouble).masked_fill(among.logical_not(), -HUGE_VAL);
    const Task& task = data.task();
    const auto found = references_of(data, Split::kValidation);
    const auto tokens = task.scored(batch).item<int64_t>();
    CHECK(found.tokens == tokens);
    CHECK(found.examples == batch.examples());
    CHECK(value(found, "chance") ==
          Approx(task.sums(logits, batch)[0].item<double>() / static_cast<double>(tokens)));
  });
}

TEST_CASE("accuracies of chance are means over all that a guess may name", "[data]") {
  each_source([](const DataSource& data, const Batch& batch) {
    const auto among = answers_of_each(data, batch);
    const auto count = among.sum(-1, /*keepdim=*/true);  // of each target
    // Answers first, in the order of their ids: guess k names answer k mod count everywhere.
    const auto order = std::get<1>(among.to(at::kInt).sort(/*stable=*/true, -1, true));
    int64_t guesses = 1;
    for (int64_t i = 0; i < count.numel(); ++i)
      guesses = std::lcm(guesses, count.flatten()[i].item<int64_t>());
    REQUIRE(guesses <= 300);
    const Task& task = data.task();
    std::vector<double> sums(1 + task.summaries().size());
    for (int64_t k = 0; k < guesses; ++k) {
      const auto named = order.gather(-1, at::full_like(count, k).remainder(count));
      const auto logits = at::zeros(among.sizes()).scatter(-1, named, 1);
      sums[0] += task.sums(logits, batch)[1].item<double>() / task.scored(batch).item<double>();
      if (task.summaries().empty()) continue;
      const auto values = task.summarised(task.counts(logits, batch));
      for (size_t n = 0; n < values.size(); ++n) sums[1 + n] += values[n];
    }
    const auto found = references_of(data, Split::kValidation);
    const auto all = static_cast<double>(guesses);
    CHECK(value(found, "chance", "accuracy") == Approx(sums[0] / all));
    for (size_t n = 0; n < task.summaries().size(); ++n)
      CHECK(value(found, "chance", task.summaries()[n].name) == Approx(sums[1 + n] / all));
  });
}

TEST_CASE("every kind of data with examples has chance", "[data]") {
  const Folder folder;
  const auto sources = small_sources(folder);
  for (const auto& kind : data_registry().names()) {
    if (kind == "none") continue;
    INFO(kind);
    REQUIRE(sources.contains(kind));
    const auto data = opened(kind, sources.at(kind), folder);
    const auto found = references_of(*data, Split::kValidation);
    REQUIRE_FALSE(found.all.empty());
    CHECK(found.all.front().name == kChance);
    const auto answers = data->answers(data->eval_batch(Split::kValidation, 0, 1));
    const bool drawn = answers && answers->drawn_alike;
    CHECK((kind != "memorization" || !drawn));
    CHECK((found.find("unigram") || found.find("commonest")) == !drawn);
    CHECK(references_are_quick(*data, Split::kValidation));
  }
}

TEST_CASE("of a text bigrams foretell more than unigrams, and these more than a guess", "[data]") {
  const auto text = fs::path(build::kSourceDir) / "configs/data/tinyshakespeare.txt";
  for (const char* kind : {"char", "bytes", "words"}) {
    INFO(kind);
    const auto data = open(std::string("kind: ") + kind + ", path: " + text.string());
    const auto found = references_of(*data, Split::kValidation);
    CHECK(value(found, "bigram") < value(found, "unigram"));
    CHECK(value(found, "unigram") < value(found, "chance"));
    CHECK(value(found, "bigram", "accuracy") > value(found, "unigram", "accuracy"));
    CHECK(value(found, "unigram", "accuracy") > value(found, "chance", "accuracy"));
    CHECK(references_are_quick(*data, Split::kValidation));
  }
}

// Counted by another program, of Python's Counter, with the weight found by golden sections.
TEST_CASE("references of Shakespeare's characters are those that another program counts",
          "[data]") {
  const auto text = fs::path(build::kSourceDir) / "configs/data/tinyshakespeare.txt";
  const auto found = references_of(*open("kind: char, path: " + text.string()), Split::kValidation);
  CHECK(found.tokens == 111488);
  CHECK(value(found, "chance") == Approx(4.174387).epsilon(1e-6));
  CHECK(value(found, "unigram") == Approx(3.347261).epsilon(1e-6));
  CHECK(value(found, "unigram", "accuracy") == Approx(0.1490026).epsilon(1e-6));
  CHECK(value(found, "bigram") == Approx(2.490009).epsilon(1e-6));
  CHECK(value(found, "bigram", "accuracy") == Approx(0.2698228).epsilon(1e-6));
  CHECK(found.find("bigram")->how ==
        "0.9996 × counted pairs of 1,003,840 training tokens + 0.0004 × the unigram");
}

TEST_CASE("a text without a training part has a guess alone", "[data]") {
  const Folder folder;
  folder.write("text.txt", words(40));
  const auto data = open("kind: char, path: text.txt, context: 8", folder.path());
  const auto given =
      given_text(describe_data(*data), {.text = "the cat on the hill", .name = "test"});
  const auto found = references_of(*given, Split::kWhole);
  CHECK(names(found) == Names{"chance"});
  CHECK(value(found, "chance") == Approx(std::log(data->vocabulary())));
  CHECK(references_of(*given, Split::kValidation).all.empty());
}

TEST_CASE("another task than prediction has no references", "[data]") {
  const auto data = open("kind: copy, context: 4, symbols: 3");
  const SaysZero task;
  const auto found = references_of(WithTask(*data, task), Split::kValidation);
  CHECK(found.all.empty());
  CHECK(references_json(found).is_null());
}

}  // namespace headlab::test_references
