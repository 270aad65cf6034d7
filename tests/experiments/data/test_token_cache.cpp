// Tokens that are kept: made once, believed only where they are whole, never half there.
#include <fmt/format.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "experiments/data/token_cache.h"
#include "experiments/data/tokenizers/byte_tokenizer.h"
#include "experiments/data/tokenizers/padded_tokenizer.h"
#include "experiments/data/tokenizers/word_tokenizer.h"
#include "experiments/files/cache_folder.h"
#include "experiments/files/file_stamp.h"
#include "tests/catch.h"
#include "tests/data_testing.h"
#include "tests/storage_faults.h"

namespace headlab::test_token_cache {
namespace {

using namespace testing;
using Ids = std::vector<int64_t>;

// Words, and how many texts were encoded.
class Counting : public Tokenizer {
 public:
  explicit Counting(const std::vector<std::string>& words)
      : words_(word_tokenizer({{"<unk>"}, 0, ""}, words)) {}
  int64_t vocabulary() const override { return words_->vocabulary(); }
  Encoding encode(std::string_view text, const std::string& name) const override {
    ++encoded;
    return words_->encode(text, name);
  }
  size_t next_cut(std::string_view text, size_t from) const override {
    return words_->next_cut(text, from);
  }
  std::string bytes(int64_t id, std::optional<int64_t> before) const override {
    return words_->bytes(id, before);
  }
  std::vector<std::string> token_texts() const override { return words_->token_texts(); }
  nlohmann::ordered_json json() const override { return words_->json(); }

  mutable std::atomic<int> encoded = 0;

 private:
  std::shared_ptr<const Tokenizer> words_;
};

const std::string kText = "the cat on the hill\nthe dog and the cat ";
const std::vector<std::string> kWords{"the", "cat", "dog", "hill"};

Ids ids_of(const TokenIds& ids) {
  Ids all(static_cast<size_t>(ids.size()));
  ids.copy(0, ids.size(), all.data());
  return all;
}

Ids kept(const fs::path& folder, const Tokenizer& tokenizer, std::string_view text = kText) {
  return ids_of(kept_tokens(folder, tokenizer, {.text = text, .name = "t.txt"}, {}));
}

fs::path only_file(const fs::path& folder) {
  std::vector<fs::path> found(fs::directory_iterator(folder), {});
  REQUIRE(found.size() == 1);
  CHECK(found[0].extension() == ".ids");
  return found[0];
}

ino_t inode_of(const fs::path& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_ino;
}

// The environment with another value, or without the variable, for a while.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    value ? ::setenv(name, value, 1) : ::unsetenv(name);
  }
  ~Variable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace

TEST_CASE("kept tokens are those of the text, and are not made again", "[tokenizer]") {
  const Scratch scratch;
  const auto folder = scratch / "a/b";  // made with what is above it
  const Counting words(kWords);
  const auto expected = words.encode(kText, "t").ids;
  CHECK(kept(folder, words) == expected);
  CHECK((fs::status(folder).permissions() & fs::perms::all) == fs::perms::owner_all);
  const auto file = only_file(folder);
  const auto inode = inode_of(file);
  words.encoded = 0;
  CHECK(kept(folder, words) == expected);
  CHECK(words.encoded == 0);
  CHECK(only_file(folder) == file);
  CHECK(inode_of(file) == inode);
  CHECK(kept(folder, words, "").empty());
  CHECK(kept(folder, *byte_tokenizer(), "a\xFF") == Ids{97, 255});
}

TEST_CASE("another text and another tokenizer have another file", "[tokenizer]") {
  const Scratch scratch;
  const auto check = [&](const Tokenizer& tokenizer, const std::string& text, size_t files) {
    CHECK(kept(scratch.path(), tokenizer, text) == tokenizer.encode(text, "t").ids);
    CHECK(names_in(scratch.path()).size() == files);
  };
  const auto first = word_tokenizer({{"<unk>"}, 0, ""}, kWords);
  check(*first, kText, 1);
  check(*first, kText + "the", 2);
  check(*word_tokenizer({{"<unk>"}, 0, ""}, {"cat", "the"}), kText, 3);
  check(*word_tokenizer({{"<unk>"}, 0, "<unk>"}, kWords), kText, 4);
  check(*padded_tokenizer(first, 300), kText, 5);
  check(*first, kText, 5);
}

TEST_CASE("tokens that are removed stay where they are in use", "[tokenizer]") {
  const Scratch scratch;
  const Counting words(kWords);
  const auto ids = kept_tokens(scratch / "c", words, {.text = kText, .name = "t"}, {});
  fs::remove_all(scratch / "c");
  CHECK(ids_of(ids) == words.encode(kText, "t").ids);
  CHECK(kept(scratch / "c", words) == ids_of(ids));
}

TEST_CASE("a file that is not what was written is made anew", "[tokenizer]") {
  const Scratch scratch;
  const Counting words(kWords);
  const auto expected = kept(scratch.path(), words);
  const auto file = only_file(scratch.path());
  const auto whole = read_bytes(file);
  const auto check = [&](const std::string& bytes) {
    write_bytes(file, bytes);
    REQUIRE(kept(scratch.path(), words) == expected);
    REQUIRE(read_bytes(file) == whole);
  };
  for (size_t at = 0; at < whole.size(); at += at + 9 < whole.size() ? 9 : 1) {
    INFO("byte " << at << " of " << whole.size());
    auto other = whole;
    other[at] = static_cast<char>(other[at] ^ 1);
    check(other);
    check(whole.substr(0, at));
  }
  check(whole + whole);
  check(whole.substr(1));
  check(std::string(whole.size(), '\0'));
  fs::remove(file);
  fs::create_directory(file);  // what cannot be replaced either
  CHECK_THROWS_AS(kept(scratch.path(), words), RunError);
}

TEST_CASE("a storage that fails leaves nothing of the tokens, and is told", "[tokenizer]") {
  const Scratch scratch;
  const Counting words(kWords);
  const auto expected = words.encode(kText, "t").ids;
  with_fault_at_each_call(
      ENOSPC, [&] { fs::remove_all(scratch / "c"); },
      [&] {
        try {
          const auto made = kept(scratch / "c", words);
          CHECK(made == expected);
        } catch (const RunError&) {
          return false;
        }
        return true;
      },
      [&](bool finished) {
        std::error_code none;
        if (!finished && fs::is_directory(scratch / "c", none))
          for (const auto& name : names_in(scratch / "c")) CHECK(name.ends_with(".ids"));
        CHECK(kept(scratch / "c", words) == expected);
      });
}

TEST_CASE("a process that is killed leaves nothing that is taken for whole", "[tokenizer]") {
  const Scratch scratch;
  const Counting words(kWords);
  const auto expected = words.encode(kText, "t").ids;
  with_fault_at_each_call(
      0, [&] { fs::remove_all(scratch / "c"); },
      [&] {
        return survives([&] {
          if (kept(scratch / "c", words) != expected) ::_exit(2);
        });
      },
      [&](bool) {
        words.encoded = 0;
        CHECK(kept(scratch / "c", words) == expected);
        std::error_code none;
        const auto before = fs::file_time_type::clock::now() - std::chrono::hours(2);
        for (const auto& name : names_in(scratch / "c"))
          fs::last_write_time(scratch / ("c/" + name), before, none);
        kept(scratch / "c", words, "other text");  // takes away what was left
        for (const auto& name : names_in(scratch / "c")) CHECK(name.ends_with(".ids"));
      });
}

TEST_CASE("what another process is writing is left to it", "[tokenizer]") {
  const Scratch scratch;
  const auto other = scratch / ".tmp-1-0";
  write_bytes(other, "half");
  kept(scratch.path(), *byte_tokenizer());
  CHECK(fs::exists(other));
}

TEST_CASE("who wants the same tokens at once waits for the first", "[tokenizer]") {
  const Scratch scratch;
  const Counting words(kWords), more(kWords);
  std::string text;
  for (int n = 0; n < 20000; ++n) text += fmt::format("the cat {}\n", n);
  Ids first, second;
  {
    std::jthread one([&] { first = kept(scratch.path(), words, text); });
    std::jthread two([&] { second = kept(scratch.path(), more, text); });
  }
  CHECK(first == words.encode(text, "t").ids);
  CHECK(second == first);
  CHECK(std::min(words.encoded.load(), more.encoded.load()) <= 1);  // one of them made nothing
  only_file(scratch.path());
}

TEST_CASE("a file that changes while it is read is refused", "[tokenizer]") {
  const Folder folder;
  folder.write("t.txt", kText);
  auto source = source_of_file(folder / "t.txt");
  const auto words = word_tokenizer({{"<unk>"}, 0, ""}, kWords);
  source.stamp.changed_ns -= 1;  // it was another when it was opened
  CHECK(error_of<DataError>([&] { kept_tokens(folder / "c", *words, source, {}); }) ==
        (folder / "t.txt").string() + ": has changed while it was read; run the command again");
  CHECK(names_in(folder / "c").empty());
}

TEST_CASE("a text is known by its own bytes, whatever stands before them", "[tokenizer]") {
  const Folder folder;
  const Counting words(kWords);
  folder.write("t.txt", kText);
  folder.write("marked.txt", "\xEF\xBB\xBF" + kText);
  for (const char* name : {"t.txt", "marked.txt"})
    CHECK(ids_of(kept_tokens(folder / "c", words, source_of_file(folder / name), {})) ==
          words.encode(kText, "t").ids);
  only_file(folder / "c");
}

TEST_CASE("short texts leave no file, long ones do, wherever there is a folder", "[tokenizer]") {
  const Scratch scratch;
  const Variable cache("XDG_CACHE_HOME", (scratch / "cache").c_str());
  const Variable home("HOME", (scratch / "home").c_str());
  const auto words = word_tokenizer({{"<unk>"}, 0, ""}, kWords);
  std::string text;
  while (text.size() < 4 << 20) text += "the cat and the dog of the hill\n";
  const auto expected = words->encode(text, "t").ids;
  const auto tokens = [&](std::string_view of) {
    return ids_of(tokens_of(*words, {.text = of, .name = "t.txt"}));
  };
  CHECK(tokens(kText) == words->encode(kText, "t").ids);
  CHECK_FALSE(fs::exists(scratch / "cache"));
  CHECK(tokens(text) == expected);
  CHECK(names_in(scratch / "cache/headlab/tokens").size() == 1);
  {
    const Variable none("XDG_CACHE_HOME", nullptr);
    CHECK(tokens(text) == expected);
    CHECK(names_in(scratch / "home/.cache/headlab/tokens").size() == 1);
    const Variable relative("XDG_CACHE_HOME", "cache");  // is passed over
    CHECK(cache_folder() == scratch / "home/.cache/headlab");
    const Variable homeless("HOME", nullptr);
    CHECK(cache_folder().empty());
    CHECK(tokens(text) == expected);
  }
  write_bytes(scratch / "file", "");
  const Variable no_folder("XDG_CACHE_HOME", (scratch / "file").c_str());
  CHECK(tokens(text) == expected);
}

}  // namespace headlab::test_token_cache
