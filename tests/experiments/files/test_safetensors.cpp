// The safetensors reader against files that lie.
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "core/errors.h"
#include "experiments/files/safetensors.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/safetensors_testing.h"
#include "tests/scratch.h"

namespace headlab::test_safetensors {
using namespace testing;

namespace {

namespace fs = std::filesystem;
using Catch::Contains;

const fs::path kGolden = fs::path(build::kSourceDir) / "tests/golden";

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
      CHECK_THROWS_WITH(SafetensorsFile(path), Catch::Matchers::StartsWith(path.string() + ": "));
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
    CHECK_THAT(said,
               Catch::Matchers::StartsWith(path.string() + ": ") && Contains(wrong.complaint));
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

TEST_CASE("a header with any bit changed is refused or still covers the data exactly") {
  const Scratch scratch;
  const fs::path path = scratch.path() / "x";
  const std::string whole = read_bytes(kGolden / "safetensors/ok_two.safetensors");
  const size_t header_end = 8 + header_of(whole).size();
  size_t accepted = 0, refused = 0;
  for (size_t at = 0; at < header_end; ++at) {
    for (int flip = 1; flip < 256; flip *= 2) {  // each bit
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

}  // namespace
}  // namespace headlab::test_safetensors
