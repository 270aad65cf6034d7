// Files under names that someone else may have laid.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "core/errors.h"
#include "experiments/files/regular_file.h"
#include "tests/catch.h"
#include "tests/scratch.h"

namespace headlab::test_regular_file {
namespace {

using Catch::Contains;
namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

TEST_CASE("a file that is written is a regular one of a single name") {
  const Scratch folder;
  write(folder / "victim", "precious");
  fs::create_symlink(folder / "victim", folder / "link");
  fs::create_symlink(folder / "nothing", folder / "loose");
  fs::create_hard_link(folder / "victim", folder / "second");
  REQUIRE(mkfifo((folder / "fifo").c_str(), 0600) == 0);
  constexpr int kAppend = O_WRONLY | O_CREAT | O_APPEND;
  CHECK_THROWS_WITH(open_regular(folder / "link", kAppend), Contains("link: is a link, so that"));
  CHECK_THROWS_WITH(open_regular(folder / "loose", kAppend), Contains("is a link, so that"));
  CHECK_THROWS_WITH(open_regular(folder / "second", O_RDWR), Contains("is a file of 2 names"));
  CHECK_THROWS_WITH(open_regular(folder / "fifo", kAppend), Contains("is a FIFO where a file"));
  CHECK_THROWS_WITH(open_regular(folder / "fifo", O_RDWR), Contains("is a FIFO where a file"));
  CHECK_THROWS_WITH(open_regular("/dev/null", O_RDWR), Contains("is a device where a file"));
  CHECK_THROWS_WITH(open_regular(folder / ".", O_RDWR), Contains("is a directory where a file"));
  CHECK(!fs::exists(folder / "nothing"));
  CHECK(read_regular(folder / "victim", 100) == "precious");
  const int made = open_regular(folder / "made", kAppend);
  REQUIRE(made >= 0);
  close(made);
}

TEST_CASE("a file that is read is regular, behind a link too, and as small as was said") {
  const Scratch folder;
  write(folder / "file", "words");
  fs::create_symlink(folder / "file", folder / "link");
  fs::create_symlink("/dev/zero", folder / "zero");
  REQUIRE(mkfifo((folder / "fifo").c_str(), 0600) == 0);
  CHECK(read_regular(folder / "link", 5) == "words");
  CHECK(read_regular(folder / "file", 4) == std::nullopt);
  CHECK(read_regular(folder / "zero", 100) == std::nullopt);
  CHECK(read_regular(folder / "fifo", 100) == std::nullopt);
  CHECK(read_regular(folder / "absent", 100) == std::nullopt);
  fs::resize_file(folder / "file", uintmax_t{1} << 40);
  CHECK(read_regular(folder / "file", 1 << 20) == std::nullopt);
  CHECK_THROWS_AS(require_regular(folder / "zero"), RunError);
  CHECK_NOTHROW(require_regular(folder / "absent"));  // whoever opens it says so
}

TEST_CASE("a directory that is written to is no link") {
  const Scratch folder;
  fs::create_directory(folder / "own");
  fs::create_directory_symlink(folder / "own", folder / "link");
  CHECK_NOTHROW(require_own_directory(folder / "own"));
  CHECK_NOTHROW(require_own_directory(folder / "absent"));
  CHECK_THROWS_WITH(require_own_directory(folder / "link"), Contains("is a link, so that writing"));
}

}  // namespace
}  // namespace headlab::test_regular_file
