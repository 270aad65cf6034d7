// The safetensors reader against files that lie, and the writer against storage that fails.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>

#include "core/errors.h"
#include "core/files/safetensors.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/scratch.h"

namespace headlab::test_safetensors {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

const fs::path kGolden = fs::path(build::kSourceDir) / "tests/golden";

// Sets a soft resource limit while it lives.
struct Limit {
  Limit(decltype(RLIMIT_AS) what, rlim_t value) : resource(what) {
    REQUIRE(::getrlimit(resource, &before) == 0);
    rlimit now = before;
    now.rlim_cur = std::min(value, before.rlim_max);
    REQUIRE(::setrlimit(resource, &now) == 0);
  }
  ~Limit() { ::setrlimit(resource, &before); }
  decltype(RLIMIT_AS) resource;
  rlimit before{};
};

std::string length_prefix(uint64_t length) {
  std::string prefix(sizeof length, '\0');
  std::memcpy(prefix.data(), &length, sizeof length);
  return prefix;
}

std::string with_header(const std::string& header, size_t data_bytes) {
  return length_prefix(header.size()) + header + std::string(data_bytes, '\1');
}

std::string header_of(const std::string& bytes) {
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  return bytes.substr(sizeof length, length);
}

// What the reader says of these bytes; empty when it accepts them.
std::string complaint(const fs::path& path, const std::string& bytes) {
  write_bytes(path, bytes);
  try {
    const SafetensorsFile file(path);
    return "";
  } catch (const DataError& error) {
    return error.what();
  }
}

std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& item : fs::directory_iterator(directory)) {
    names.insert(item.path().filename().string());
  }
  return names;
}

TensorEntry entry_of(const std::string& name, Dtype dtype, std::vector<int64_t> shape,
                     const std::string& bytes) {
  return {name, dtype, std::move(shape), reinterpret_cast<const std::byte*>(bytes.data()),
          bytes.size()};
}

std::string bytes_of(const TensorEntry& entry) {
  return {reinterpret_cast<const char*>(entry.data), entry.bytes};
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

TEST_CASE("every golden file gets the verdict of the index") {
  const fs::path folder = kGolden / "safetensors";
  std::ifstream in(folder / "index.json");
  const auto index = nlohmann::json::parse(in);
  REQUIRE(index["files"].size() == 38);
  for (const auto& file : index["files"]) {
    const fs::path path = folder / file["file"].get<std::string>();
    INFO(path.filename());
    if (file["valid"]) {
      CHECK_NOTHROW(SafetensorsFile(path));
    } else {
      CHECK_THROWS_WITH(SafetensorsFile(path), Catch::StartsWith(path.string() + ": "));
      CHECK_THROWS_AS(SafetensorsFile(path), DataError);
    }
  }
}

TEST_CASE("a golden file's names, dtypes, shapes and bytes are read") {
  const SafetensorsFile file(kGolden / "safetensors/ok_key_order_differs_from_offsets.safetensors");
  REQUIRE(file.entries().size() == 2);
  CHECK(file.entries()[0].name == "a");
  CHECK(bytes_of(file.entries()[0]) == std::string("\0\1", 2));
  CHECK(bytes_of(*file.find("b")) == "\2\3");
  CHECK(file.find("b")->shape == std::vector<int64_t>{2});
  CHECK(file.find("c") == nullptr);
  CHECK(file.metadata().empty());

  const SafetensorsFile dtypes(kGolden / "safetensors/ok_dtypes.safetensors");
  std::set<Dtype> seen;
  for (const TensorEntry& entry : dtypes.entries()) {
    seen.insert(entry.dtype);
    CHECK(entry.bytes == dtype_size(entry.dtype));
  }
  CHECK(seen.size() >= 10);

  const SafetensorsFile unicode(kGolden / "safetensors/ok_unicode_name.safetensors");
  CHECK(unicode.find("gew\u00fc\u00df \U0001F600") != nullptr);
  const SafetensorsFile metadata(kGolden / "safetensors/ok_metadata.safetensors");
  CHECK(metadata.metadata() == std::map<std::string, std::string>{{"format", "pt"}, {"x", ""}});
}

TEST_CASE("a wrong header is refused in one line that says what is wrong with which tensor") {
  const Scratch scratch;
  const fs::path path = scratch.path() / "x.safetensors";
  const std::string good = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  REQUIRE(complaint(path, with_header(good, 2)).empty());
  const auto a = [](const std::string& fields) { return R"({"a":{)" + fields + "}}"; };

  struct Case {
    std::string header;
    size_t data_bytes;
    std::string complaint;
  };
  const std::vector<Case> cases = {
      {good, 1, R"(tensor "a": ends at byte 2 of the data, the file holds 1)"},
      {good, 3, "the tensors take 2 bytes of data, the file holds 3"},
      {good + std::string("\0", 1), 2, "the header holds a zero byte"},
      {good + "{}", 2, "the header is not JSON"},
      {"\xEF\xBB\xBF" + good, 2, "the header does not start with '{'"},
      {"// a comment\n" + good, 2, "the header does not start with '{'"},
      {"{/**/" + good.substr(1), 2, "the header is not JSON (byte 2 of it)"},
      {R"({"\ud800":{}})", 0, "the header is not JSON"},
      {R"({"a":1})", 0, R"(tensor "a": is not an object)"},
      {R"({"a\nb":null})", 0, R"(tensor "a\nb": is not an object)"},
      {R"({"__metadata__":null})", 0, "__metadata__ is not an object"},
      {R"({"__metadata__":{"k":null}})", 0, R"(__metadata__: "k" is not a string)"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, R"(the header has "__metadata__" twice)"},
      {R"({"__metadata__":{"k":"","k":""}})", 0, R"(the header has "k" twice)"},
      {R"({"__metadata__":{"k":{"l":[]}}})", 0, "the header is nested too deeply"},
      {R"({"a":)" + std::string(1'000'000, '['), 0, "the header is nested too deeply"},
      {a(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4,
       R"(tensor "a": F32 [2] takes 8 bytes, data_offsets span 4)"},
      {a(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])"), 1,
       R"(tensor "a": data_offsets run backwards, 1 to 0)"},
      {a(R"("dtype":"U8","shape":[1],"data_offsets":[1,2])"), 2,
       R"(tensor "a": starts at byte 1 of the data, 0 are taken before it)"},
      {a(R"("dtype":"C64","shape":[],"data_offsets":[0,8])"), 8,
       R"(tensor "a": unknown dtype "C64")"},
      {a(R"("dtype":8,"shape":[],"data_offsets":[0,8])"), 8, "dtype is not a string"},
      {a(R"("shape":[],"data_offsets":[0,8])"), 8, "dtype is missing"},
      {a(R"("dtype":"U8","data_offsets":[0,1])"), 1, "shape is missing"},
      {a(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"more":0)"), 1,
       "has fields other than dtype, shape and data_offsets"},
      {a(R"("dtype":"U8","shape":2,"data_offsets":[0,2])"), 2, "shape is not a list"},
      {a(R"("dtype":"U8","shape":[2.0],"data_offsets":[0,2])"), 2, "shape is not a list of whole"},
      {a(R"("dtype":"U8","shape":[-0],"data_offsets":[0,0])"), 0, "shape is not a list of whole"},
      {a(R"("dtype":"U8","shape":[1e999],"data_offsets":[0,0])"), 0, "that no double reaches"},
      {a(R"("dtype":"U8","shape":[[1]],"data_offsets":[0,1])"), 1, "nested too deeply"},
      {a(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,0])"), 0,
       "does not fit in 63 bits"},
      {a(R"("dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,0])"), 0,
       "does not fit in 63 bits"},
      {a(R"("dtype":"U8","shape":[0,4611686018427387904,4],"data_offsets":[0,0])"), 0,
       "does not fit in 63 bits"},
  };
  for (const Case& wrong : cases) {
    INFO(wrong.header.substr(0, 200));
    const std::string said = complaint(path, with_header(wrong.header, wrong.data_bytes));
    CHECK_THAT(said, Catch::StartsWith(path.string() + ": ") && Contains(wrong.complaint));
    CHECK(said.find('\n') == std::string::npos);
    CHECK(said.size() < path.string().size() + 300);
  }
}

TEST_CASE("white space after the header and several empty tensors at one place are fine") {
  const Scratch scratch;
  const std::string empty = R"({"dtype":"F32","shape":[0],"data_offsets":[1,1]})";
  const std::string one = R"({"dtype":"U8","shape":[],"data_offsets":[0,1]})";
  const std::string header = R"({"a":)" + empty + R"(,"b":)" + one + R"(,"c":)" + empty + "} \n\t ";
  CHECK(complaint(scratch.path() / "x", with_header(header, 1)).empty());
}

TEST_CASE("what is no readable regular file is refused by name") {
  const Scratch scratch;
  CHECK_THROWS_WITH(
      SafetensorsFile(scratch.path() / "none"),
      (scratch.path() / "none").string() + ": cannot be opened: No such file or directory");
  CHECK_THROWS_WITH(SafetensorsFile(scratch.path()), Contains("is not a regular file"));
  const fs::path pipe = scratch.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(SafetensorsFile(pipe), Contains("is not a regular file"));
}

TEST_CASE("a header length that the file cannot back is refused before anything is allocated") {
  const Scratch scratch;
  const fs::path path = scratch.path() / "x";
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  REQUIRE(statm >> pages);
  const rlim_t in_use = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
  for (const uint64_t length : {uint64_t{99'999'999}, uint64_t{100'000'000}, uint64_t{100'000'001},
                                uint64_t{1} << 40, ~uint64_t{0} - 7, ~uint64_t{0}}) {
    const Limit memory(RLIMIT_AS, in_use + (rlim_t{32} << 20));
    CHECK_THAT(complaint(path, length_prefix(length) + "{}"),
               Contains("the header is said to have " + std::to_string(length) + " bytes"));
  }
}

TEST_CASE("a file cut off at any byte is refused") {
  const Scratch scratch;
  const std::string whole = read_bytes(kGolden / "safetensors/ok_two.safetensors");
  REQUIRE(whole.size() == 168);
  for (size_t size = 0; size < whole.size(); ++size) {
    INFO(size);
    CHECK_FALSE(complaint(scratch.path() / "x", whole.substr(0, size)).empty());
  }
}

TEST_CASE("a header with any byte changed is refused or still covers the data exactly") {
  const Scratch scratch;
  const fs::path path = scratch.path() / "x";
  const std::string whole = read_bytes(kGolden / "safetensors/ok_two.safetensors");
  const size_t header_end = 8 + header_of(whole).size();
  size_t accepted = 0, refused = 0;
  for (size_t at = 0; at < header_end; ++at) {
    for (int flip = 1; flip < 256; ++flip) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ flip);
      if (!complaint(path, bytes).empty()) {
        ++refused;
        continue;
      }
      ++accepted;
      std::string data;
      const SafetensorsFile file(path);
      for (const TensorEntry& entry : file.entries()) data += bytes_of(entry);
      REQUIRE(data.size() == whole.size() - header_end);
    }
  }
  CHECK(accepted > 0);  // another letter in a name
  CHECK(refused > 20 * accepted);
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
}  // namespace headlab::test_safetensors
