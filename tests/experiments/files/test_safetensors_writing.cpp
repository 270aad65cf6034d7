// The safetensors writer: what it writes, what it refuses, and storage that fails.
#include <csignal>
#include <filesystem>
#include <numeric>
#include <random>

#include "core/errors.h"
#include "experiments/files/safetensors.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/safetensors_testing.h"
#include "tests/scratch.h"

namespace headlab::test_safetensors_writing {
using namespace testing;

namespace {

namespace fs = std::filesystem;
using Catch::Contains;

const fs::path kGolden = fs::path(build::kSourceDir) / "tests/golden";

TensorEntry entry_of(const std::string& name, Dtype dtype, std::vector<int64_t> shape,
                     const std::string& bytes) {
  return {name, dtype, std::move(shape), reinterpret_cast<const std::byte*>(bytes.data()),
          bytes.size()};
}

constexpr Dtype kAllDtypes[] = {Dtype::kBool, Dtype::kU8,   Dtype::kI8,  Dtype::kI16, Dtype::kU16,
                                Dtype::kF16,  Dtype::kBF16, Dtype::kI32, Dtype::kU32, Dtype::kF32,
                                Dtype::kI64,  Dtype::kU64,  Dtype::kF64};

// Entries of random names, dtypes and shapes; `storage` owns their bytes.
std::vector<TensorEntry> random_entries(std::mt19937_64& random,
                                        std::vector<std::string>& storage) {
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  std::vector<TensorEntry> entries;
  storage.assign(below(9), "");
  for (size_t i = 0; i < storage.size(); ++i) {
    const Dtype dtype = kAllDtypes[below(std::size(kAllDtypes))];
    std::vector<int64_t> shape(below(4));
    for (int64_t& length : shape) length = static_cast<int64_t>(below(5));  // 0 among them
    const int64_t elements =
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    storage[i].resize(static_cast<size_t>(elements) * dtype_size(dtype));
    for (char& byte : storage[i]) byte = static_cast<char>(random());
    entries.push_back(
        entry_of(std::to_string(below(1000)) + "." + std::to_string(i), dtype, shape, storage[i]));
  }
  return entries;
}

TEST_CASE("what is written is read back, whatever the dtypes and shapes") {
  const Scratch scratch;
  const fs::path path = scratch.path() / "x.safetensors";
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> storage;
    std::vector<TensorEntry> entries = random_entries(random, storage);
    write_safetensors(path, entries, {{"round", std::to_string(round)}});
    const SafetensorsFile file(path);
    CHECK(file.metadata() ==
          std::map<std::string, std::string>{{"format", "pt"}, {"round", std::to_string(round)}});
    REQUIRE(file.entries().size() == entries.size());
    for (const TensorEntry& entry : entries) {
      const TensorEntry* read = file.find(entry.name);
      REQUIRE(read != nullptr);
      CHECK(read->dtype == entry.dtype);
      CHECK(read->shape == entry.shape);
      CHECK(bytes_of(*read) == bytes_of(entry));
      CHECK(reinterpret_cast<uintptr_t>(read->data) % dtype_size(read->dtype) == 0);
    }
  }
  CHECK(names_in(scratch.path()) == std::set<std::string>{"x.safetensors"});
}

TEST_CASE("the written bytes are these: names sorted, header padded to 8, wide elements first") {
  const Scratch scratch;
  const fs::path path = scratch.path() / "x.safetensors";
  const std::string narrow = "\1", wide = "12345678";
  write_safetensors(
      path, {entry_of("b", Dtype::kI64, {}, wide), entry_of("a", Dtype::kU8, {1, 1}, narrow)},
      {{"note", "\"quoted\""}});
  std::string header = R"({"__metadata__":{"format":"pt","note":"\"quoted\""},)"
                       R"("a":{"dtype":"U8","shape":[1,1],"data_offsets":[8,9]},)"
                       R"("b":{"dtype":"I64","shape":[],"data_offsets":[0,8]}})";
  REQUIRE(header.size() % 8 != 0);
  header.resize((header.size() + 7) / 8 * 8, ' ');
  CHECK(read_bytes(path) == length_prefix(header.size()) + header + wide + narrow);
}

TEST_CASE("every golden layer case survives being written again") {
  const Scratch scratch;
  size_t files = 0;
  for (const auto& item : fs::directory_iterator(kGolden / "mha")) {
    INFO(item.path().filename());
    const SafetensorsFile golden(item.path());
    write_safetensors(scratch.path() / "x", golden.entries(), golden.metadata());
    const SafetensorsFile again(scratch.path() / "x");
    REQUIRE(again.entries().size() == golden.entries().size());
    for (size_t i = 0; i < golden.entries().size(); ++i) {
      CHECK(again.entries()[i].name == golden.entries()[i].name);
      CHECK(bytes_of(again.entries()[i]) == bytes_of(golden.entries()[i]));
    }
    std::map<std::string, std::string> metadata = golden.metadata();
    metadata.emplace("format", "pt");
    CHECK(again.metadata() == metadata);
    ++files;
  }
  CHECK(files == 36);
}

TEST_CASE("what no reader would accept is not written") {
  const Scratch scratch;
  const fs::path path = scratch.path() / "x";
  const std::string four = "1234";
  const TensorEntry good = entry_of("a", Dtype::kF32, {1}, four);
  const auto refused = [&](std::vector<TensorEntry> entries,
                           std::map<std::string, std::string> metadata = {}) {
    CHECK_THROWS_AS(write_safetensors(path, std::move(entries), std::move(metadata)),
                    std::invalid_argument);
  };
  refused({good, good});
  refused({entry_of("__metadata__", Dtype::kF32, {1}, four)});
  refused({entry_of("a", Dtype::kF32, {2}, four)});
  refused({entry_of("a", Dtype::kF32, {-1}, four)});
  refused({entry_of("\xff", Dtype::kF32, {1}, four)});
  refused({good}, {{"k", "\xff"}});
  CHECK(names_in(scratch.path()).empty());
}

TEST_CASE("a directory that is missing or no directory is named with the reason") {
  const Scratch scratch;
  write_bytes(scratch.path() / "file", "");
  const fs::path missing = scratch.path() / "none/x", beneath = scratch.path() / "file/x";
  CHECK_THROWS_AS(write_safetensors(missing, {}), RunError);
  CHECK_THROWS_WITH(write_safetensors(missing, {}),
                    missing.string() + ": cannot be written: No such file or directory");
  CHECK_THROWS_WITH(write_safetensors(beneath, {}),
                    beneath.string() + ": cannot be written: Not a directory");
  if (::geteuid() == 0) {
    WARN("root may write into any directory: the unwritable one is not tried");
  } else {
    const fs::path locked = scratch.path() / "locked";
    fs::create_directory(locked);
    fs::permissions(locked, fs::perms::owner_read | fs::perms::owner_exec);
    CHECK_THROWS_WITH(write_safetensors(locked / "x", {}), Contains("Permission denied"));
    fs::permissions(locked, fs::perms::owner_all);
  }
}

TEST_CASE("a write that fails leaves the old file and no temporary one") {
  const Scratch scratch;
  const fs::path path = scratch.path() / "x", folder = scratch.path() / "folder";
  const std::string old_bytes(8, 'o'), new_bytes(1 << 16, 'n');
  write_safetensors(path, {entry_of("a", Dtype::kU8, {8}, old_bytes)});
  const std::string before = read_bytes(path);

  const auto handler = std::signal(SIGXFSZ, SIG_IGN);  // the limit then fails the write
  {
    const Limit file_size(RLIMIT_FSIZE, 4096);
    CHECK_THROWS_WITH(write_safetensors(path, {entry_of("a", Dtype::kU8, {1 << 16}, new_bytes)}),
                      path.string() + ": cannot be written: File too large");
  }
  std::signal(SIGXFSZ, handler);
  CHECK(read_bytes(path) == before);

  fs::create_directory(folder);
  CHECK_THROWS_WITH(write_safetensors(folder, {}), Contains("Is a directory"));
  CHECK(names_in(scratch.path()) == std::set<std::string>{"x", "folder"});

  write_safetensors(path, {entry_of("a", Dtype::kU8, {1 << 16}, new_bytes)});
  CHECK(bytes_of(*SafetensorsFile(path).find("a")) == new_bytes);
}

TEST_CASE("a temporary file left by a killed process is in nobody's way") {
  const Scratch scratch;
  const std::string prefix = ".tmp-" + std::to_string(::getpid()) + "-";
  std::set<std::string> expected{"x"};
  for (int i = 0; i < 2000; ++i) {
    write_bytes(scratch.path() / (prefix + std::to_string(i)), "left over");
    expected.insert(prefix + std::to_string(i));
  }
  write_safetensors(scratch.path() / "x", {});
  CHECK(SafetensorsFile(scratch.path() / "x").entries().empty());
  CHECK(names_in(scratch.path()) == expected);
}

}  // namespace
}  // namespace headlab::test_safetensors_writing
