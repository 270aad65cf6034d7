#include <fmt/format.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <vector>

#include "core/errors.h"
#include "experiments/system/child_process.h"
#include "experiments/system/signals.h"
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

// What the parent is told of a body that came to its limits, which says nothing of the file.
std::string unfinished(const std::string& file, const std::function<std::string()>& body) {
  try {
    in_child_process(file, body);
  } catch (const ChildUnfinished& error) {
    CHECK_THAT(error.what(), !Contains("damaged"));
    return error.what();
  } catch (const RunError& error) {
    return std::string("a fault: ") + error.what();
  }
  return "no refusal";
}

std::function<std::string()> ended_by(int signal) {
  return [signal]() -> std::string {
    std::raise(signal);
    return "lives";
  };
}

}  // namespace

TEST_CASE("a child at the end of its time is no sign of damage") {
  for (const int signal : {SIGXCPU, SIGALRM})
    CHECK_THAT(unfinished("a.h5", ended_by(signal)),
               StartsWith("a.h5: reading it took too long") && Contains("left as it is"));
  CHECK_THAT(unfinished("a.h5", ended_by(SIGKILL)), StartsWith("a.h5: ") && Contains("was killed"));
}

TEST_CASE(
    "a child that waited in vain, as for a lock of a thread that is not there, is started again") {
  const Scratch folder;
  const auto begun = folder / "begun";
  const auto answer = in_child_process("a.h5", [&] {
    const bool first = !std::filesystem::exists(begun);
    write_bytes(begun, "");
    if (first) std::raise(SIGALRM);
    return std::string("read");
  });
  CHECK(answer == "read");
}

TEST_CASE("what stops the parent's work does not end its child") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2})
    CHECK(in_child_process("a.h5", ended_by(signal)) == "lives");
}

TEST_CASE("a larger file gives a child more time") {
  const Scratch folder;
  const auto seconds = [] {
    rlimit now{};
    getrlimit(RLIMIT_CPU, &now);
    return std::to_string(now.rlim_cur);
  };
  write_bytes(folder / "small", "");
  std::ofstream(folder / "large").close();
  std::filesystem::resize_file(folder / "large", uintmax_t{1} << 30);
  const auto granted = [&](const char* name) {
    return std::stoi(in_child_process((folder / name).string(), seconds));
  };
  CHECK(granted("large") > 10 * granted("small"));
}

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

TEST_CASE("a child is not damaged by what asks the whole foreground to stop") {
  const StopSignals signals;
  const auto answer = in_child_process("a.h5", []() -> std::string {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::raise(signal);
    return "whole";
  });
  CHECK(answer == "whole");
  CHECK(StopSignals::received() == 0);
}

TEST_CASE("a child has no more memory than a damaged file should cost") {
#ifdef __SANITIZE_ADDRESS__
  return testing::skip(
      "AddressSanitizer ends a process that has no memory left before it can say so");
#endif
  const auto said = unfinished("a.h5", []() -> std::string {
    std::vector<std::string> kept;
    for (int i = 0; i < 64; ++i) kept.emplace_back(size_t{64} << 20, 'x');
    return "4 GiB";
  });
  CHECK_THAT(said, StartsWith("a.h5: reading it took too much memory"));
}

TEST_CASE("a child cannot fill the disk with the file that it repairs") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  write_bytes(path, "small");
  const auto said = unfinished(path.string(), [&]() -> std::string {
    std::filesystem::resize_file(path, uintmax_t{1} << 40);
    return "grown";
  });
  CHECK_THAT(said, StartsWith(path.string() + ": mending it would make it larger"));
  CHECK(std::filesystem::file_size(path) == 5);
}

}  // namespace headlab::test_child_process
