#include "core/config/config.h"
#include "experiments/system/own_files.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/scratch.h"

namespace headlab::test_own_files {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

TEST_CASE("a config is given by its file, or by the name of one of headlab's own") {
  const Scratch scratch;
  REQUIRE_FALSE(is_installed());  // tests run in the tree
  CHECK(own_folder() == build::kSourceDir);
  CHECK(named_config("char_mha") == fs::path(build::kSourceDir) / "configs/char_mha.yaml");
  write_bytes(scratch / "char_mha", "");
  CHECK(named_config((scratch / "char_mha").string()) == scratch / "char_mha");
  CHECK(named_config("char_nothing") == "char_nothing");  // who opens it says that it is not there
  CHECK(named_config("") == "");
}

TEST_CASE("a file that is not there and has the name of one of headlab's own names that one") {
  const Scratch scratch;
  const auto missing = (scratch / "char_mha.yaml").string();
  CHECK_THROWS_WITH(named_config(missing), Contains(missing + ": there is no such file") &&
                                               Contains("'char_mha', without folder and ending"));
  CHECK_THROWS_AS(named_config(missing), ConfigError);
}

}  // namespace headlab::test_own_files
