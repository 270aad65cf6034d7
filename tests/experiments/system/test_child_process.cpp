#include <fmt/format.h>

#include <csignal>
#include <vector>

#include "core/errors.h"
#include "experiments/system/child_process.h"
#include "tests/catch.h"
#include "tests/scratch.h"

namespace headlab::test_child_process {
namespace {

using Catch::Contains;
using Catch::Matchers::StartsWith;

// What the parent is told of a body.
std::string refusal(const std::string& file, const std::function<std::string()>& body) {
  try {
    in_child_process(file, body);
  } catch (const RunError& error) {
    return error.what();
  }
  return "no refusal";
}

}  // namespace

TEST_CASE("a child's answer and its own refusals come to the parent as they are") {
  CHECK(in_child_process("a.h5", [] { return std::string(100'000, 'x'); }).size() == 100'000);
  CHECK(refusal("a.h5", []() -> std::string { throw RunError("a.h5: is no log"); }) ==
        "a.h5: is no log");
}

TEST_CASE("a child that crashes, or throws what is no refusal, says that the file is damaged") {
  const auto crashed = refusal("a.h5", []() -> std::string { std::abort(); });
  CHECK_THAT(crashed, StartsWith("a.h5: is damaged"));
  CHECK_THAT(crashed, Contains("Aborted") && Contains("a copy"));
  const auto thrown =
      refusal("a.h5", []() -> std::string { throw std::length_error("no such length"); });
  CHECK_THAT(thrown, StartsWith("a.h5: is damaged") && Contains("no such length"));
}

TEST_CASE("a child has no more memory than a damaged file should cost") {
  const auto said = refusal("a.h5", []() -> std::string {
    std::vector<std::string> kept;
    for (int i = 0; i < 64; ++i) kept.emplace_back(size_t{64} << 20, 'x');
    return "4 GiB";
  });
  CHECK_THAT(said, StartsWith("a.h5: is damaged"));
}

TEST_CASE("a child cannot fill the disk with the file that it repairs") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  write_bytes(path, "small");
  const auto said = refusal(path.string(), [&]() -> std::string {
    std::filesystem::resize_file(path, uintmax_t{1} << 40);
    return "grown";
  });
  CHECK_THAT(said, StartsWith(path.string() + ": is damaged"));
  CHECK(std::filesystem::file_size(path) == 5);
}

}  // namespace headlab::test_child_process
