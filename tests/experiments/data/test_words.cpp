// Words of a text: the next one, and masked ones.
#include <set>

#include "core/errors.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/data_testing.h"

namespace headlab::test_words {
namespace {

using namespace testing;
using Ids = std::vector<int64_t>;

const std::string kWikiText =
    "kind: words, objective: masked, min_count: 3, context: 128, path: data/wikitext2/valid.txt, "
    "validation: data/wikitext2/test.txt";

std::shared_ptr<DataSource> wikitext() {
  return open(kWikiText, fs::path(build::kSourceDir) / "configs");
}

std::string data_error(const std::string& options, const fs::path& base) {
  return error_of<DataError>([&] { open(options, base); });
}

// What a masked block was, where nothing was drawn in the place of a word that stays.
Tensor unmasked(const Batch& batch) {
  return at::where(batch.targets.ge(0), batch.targets, batch.ids);
}

int64_t count(const Tensor& is) { return is.sum().item<int64_t>(); }

}  // namespace

TEST_CASE("each word predicts the next, the ends of lines are words", "[data]") {
  Folder folder;
  folder.write("train", "a b a c\na b\n");
  folder.write("val", "b d a\n");
  folder.write("test", "a\nb\n");
  const auto data =
      open("kind: words, path: train, validation: val, test: test, context: 3, min_count: 2",
           folder.path());
  CHECK(data->token_texts() == std::vector<std::string>{"<unk>", "a", "<eos>", "b"});
  CHECK(data->examples(Split::kTrain) == 2);
  CHECK(row(data->eval_batch(Split::kTrain, 0, 1).ids, 0) == Ids{1, 3, 1});
  const auto val = data->eval_batch(Split::kValidation, 0, 1);
  CHECK(row(val.ids, 0) == Ids{3, 0, 1});
  CHECK(row(val.targets, 0) == Ids{0, 1, 2});
  CHECK(data->examples(Split::kTest) == 1);
  CHECK(data->epoch_examples() == 0);
  CHECK(data->train_batch(1, 0, 0, 2).ids.sizes() == at::IntArrayRef({2, 3}));
  CHECK(data->files() == std::vector<fs::path>{folder.path() / "train", folder.path() / "val",
                                               folder.path() / "test"});
}

TEST_CASE("one text is cut behind a line, else behind a word, and only its beginning counts",
          "[data]") {
  Folder folder;
  folder.write("lines", "a b\nc d\ne f g h\n");
  const auto lines = open("kind: words, path: lines, train_share: 0.3, context: 2", folder.path());
  CHECK(lines->token_texts() == std::vector<std::string>{"<unk>", "<eos>", "a", "b", "c", "d"});
  CHECK(lines->examples(Split::kValidation) == 2);
  CHECK(lines->files() == std::vector<fs::path>{folder.path() / "lines"});
  folder.write("words", "a b c d e f g h");
  const auto words = open("kind: words, path: words, train_share: 0.5, context: 2", folder.path());
  CHECK(words->vocabulary() == 5);
  CHECK(data_error("kind: words, path: words, train_share: 0.99, context: 2", folder.path()) ==
        (folder.path() / "words").string() +
            ": 0 tokens for split val, but a window takes context + 1 = 3; use a smaller context "
            "or a longer text");
}

TEST_CASE("words of a text are the same whether its lines end in LF or CRLF", "[data]") {
  Folder folder;
  const auto text = contents_of(fs::path(build::kSourceDir) / "configs/data/tinyshakespeare.txt");
  folder.write("lf", text);
  folder.write("crlf", "\xEF\xBB\xBF" + with_crlf(text));
  const auto words = [&](const std::string& options) {
    return open("kind: words, " + options, folder.path());
  };
  const auto lf = words("path: lf"), crlf = words("path: crlf");
  CHECK(lf->vocabulary() == 23843);
  CHECK(crlf->token_texts() == lf->token_texts());
  const auto last = lf->examples(Split::kValidation);
  REQUIRE(crlf->examples(Split::kValidation) == last);
  CHECK(crlf->eval_batch(Split::kValidation, 0, last)
            .ids.equal(lf->eval_batch(Split::kValidation, 0, last).ids));
  const auto encoding = crlf->tokenizer()->encode("be\r\nor", "t");
  CHECK(encoding.ids == lf->tokenizer()->encode("be\nor", "t").ids);
  CHECK((encoding.ranges == std::vector<TextRange>{{0, 2}, {2, 4}, {4, 6}}));
  // A carriage return that ends no line is a character of its word.
  folder.write("lone", "a\rb c\r\rd\r\n\r a\rb c\n");
  const auto lone = words("path: lone, train_share: 0.999, validation: lone, context: 2");
  CHECK(lone->token_texts() ==
        std::vector<std::string>{"<unk>", "<eos>", "a\rb", "\r", "c", "c\r\rd"});
}

TEST_CASE("masked blocks of WikiText-2 hold the text between [CLS] and [SEP]", "[data]") {
  const auto data = wikitext();
  CHECK(data->vocabulary() == 6932);
  CHECK(data->shape().pad == 0);
  CHECK(data->epoch_examples() == 1727);              // of 217,646 words 44 are left over
  CHECK(data->examples(Split::kValidation) == 1948);  // of 245,569 words 121
  const auto batch = data->eval_batch(Split::kTrain, 0, 1727);
  CHECK(batch.ids.select(1, 0).eq(2).all().item<bool>());
  CHECK(batch.ids.select(1, 127).eq(3).all().item<bool>());
  CHECK_FALSE(batch.length.defined());
  const auto words = unmasked(batch).slice(1, 1, 127);
  CHECK(data->tokenizer()
            ->decode(row(words.slice(0, 0, 1).contiguous(), 0))
            .starts_with("\n= Homarus gammarus =\n\nHomarus gammarus , known as the European"));
  CHECK_FALSE((words.eq(0) | words.eq(2) | words.eq(3) | words.eq(4)).any().item<bool>());
  CHECK(data->token_classes().at(2) == kCls);
  CHECK(data->token_classes().at(3) == kSep);
}

TEST_CASE("15 % of the words are chosen: masked, another word, or as they are", "[data]") {
  const auto data = wikitext();
  const auto batch = data->epoch_batch(7, 0, 1727);
  const auto chosen = batch.targets.ge(0);
  CHECK((batch.targets.eq(kIgnored) | chosen).all().item<bool>());
  CHECK_FALSE(chosen.select(1, 0).any().item<bool>());
  CHECK_FALSE(chosen.select(1, 127).any().item<bool>());
  const double words = 1727 * 126, n = count(chosen);
  CHECK(std::abs(n - .15 * words) < 5 * std::sqrt(.15 * .85 * words));
  const auto share = [&](const Tensor& is, double p, double of) {
    CHECK(std::abs(count(is & chosen) - p * of) < 5 * std::sqrt(p * (1 - p) * of));
  };
  share(batch.ids.eq(4), .8, n);
  share(batch.ids.eq(batch.targets), .1, n);
  CHECK(count(batch.targets.eq(1)) > .08 * n);  // [UNK], a tenth of the words, is one of them
  // Words drawn in their place: any but the other specials, each as likely.
  const auto other = chosen & batch.ids.ne(4) & batch.ids.ne(batch.targets);
  const auto drawn = batch.ids.masked_select(other);
  CHECK_FALSE((drawn.eq(0) | drawn.eq(2) | drawn.eq(3)).any().item<bool>());
  const double low = count(drawn.lt(3468)), all = drawn.size(0);
  CHECK(std::abs(low - .5 * all) < 5 * std::sqrt(.25 * all));
  CHECK(drawn.max().item<int64_t>() > 6900);
}

TEST_CASE("masks are drawn anew each epoch, and stay as they are for evaluation", "[data]") {
  const auto data = wikitext(), again = wikitext();
  const auto same = [](const Batch& a, const Batch& b) {
    return a.ids.equal(b.ids) && a.targets.equal(b.targets);
  };
  const auto whole = data->epoch_batch(7, 0, 12);
  CHECK(same(whole, again->epoch_batch(7, 0, 12)));
  CHECK(whole.ids.slice(0, 6).equal(again->epoch_batch(7, 6, 6).ids));
  CHECK_FALSE(same(whole, data->epoch_batch(8, 0, 12)));
  // The same block in two epochs: the same words, other masks.
  const auto epochs = data->epoch_batch(7, 0, 2 * 1727);
  const auto words = unmasked(epochs), key = words.slice(1, 1, 5);
  int64_t pairs = 0, alike = 0;
  for (int64_t n = 1727; n < 1727 + 50; ++n)
    for (int64_t m = 0; m < 1727; ++m) {
      if (!words[n].equal(words[m])) continue;
      ++pairs, alike += epochs.targets[n].equal(epochs.targets[m]);
    }
  CHECK(pairs == 50);
  CHECK(alike == 0);
  CHECK(same(data->eval_batch(Split::kValidation, 3, 5),
             again->eval_batch(Split::kValidation, 3, 5)));
  CHECK(data->eval_batch(Split::kValidation, 0, 8)
            .ids.slice(0, 3)
            .equal(data->eval_batch(Split::kValidation, 3, 5).ids));
  CHECK_THROWS_AS(data->eval_batch(Split::kValidation, 1947, 2), c10::Error);
}

TEST_CASE("wrong options and texts of words are named", "[data]") {
  Folder folder;
  const auto config_error = [&](const std::string& options) {
    return error_of<ConfigError>([&] { open(options, folder.path()); });
  };
  CHECK(config_error("kind: words") == "f.yaml:1:7: data.path: is needed: the text file");
  CHECK(config_error("kind: words, path: t, objective: masked, context: 2") ==
        "f.yaml:1:58: data.context: must be at least 3: [CLS], a word, [SEP]");
  CHECK(config_error("kind: words, path: t, min_count: 0") ==
        "f.yaml:1:41: data.min_count: must be at least 1, is 0");
  CHECK(config_error("kind: words, path: t, objective: mask").find("did you mean 'masked'?") !=
        std::string::npos);
  const auto at = [&](const char* name) { return (folder.path() / name).string(); };
  folder.write("short", "a b c d e f\n");
  CHECK(data_error("kind: words, path: short, validation: short, objective: masked, context: 10",
                   folder.path()) ==
        at("short") +
            ": 7 words for split train, but a block takes context - 2 = 8; use a smaller "
            "context or a longer text");
  folder.write("latin1", "caf\xE9 au lait\n");
  CHECK_THAT(data_error("kind: words, path: latin1", folder.path()),
             Catch::Matchers::StartsWith(at("latin1") + ": byte 3 (0xE9) is not UTF-8"));
  CHECK(data_error("kind: words, path: short, context: 2, test: gone", folder.path()) ==
        at("gone") + ": cannot be opened: No such file or directory");
}

}  // namespace headlab::test_words
