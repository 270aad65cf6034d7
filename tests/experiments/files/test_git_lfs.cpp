// Pointers of Git LFS, whatever they stand for.
#include "core/config/config.h"
#include "core/errors.h"
#include "experiments/files/config_file.h"
#include "experiments/files/gguf.h"
#include "experiments/files/git_lfs.h"
#include "experiments/files/h5.h"
#include "experiments/files/safetensors.h"
#include "tests/catch.h"
#include "tests/scratch.h"

namespace headlab::test_git_lfs {
namespace {

const std::string kPointer =
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";

template <class Open>
std::string said(Open open) {
  try {
    open();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing";
}

TEST_CASE("a pointer of Git LFS is named as such, and what fetches the file") {
  const Scratch scratch;
  const auto path = scratch / "file";
  write_bytes(path, kPointer);
  const std::string complaint =
      path.string() +
      ": is a pointer of Git LFS, not the file itself; `git lfs pull`, run in its repository, "
      "fetches the file";
  CHECK(said([&] { MappedFile{path}; }) == complaint);
  CHECK(said([&] { SafetensorsFile{path}; }) == complaint);
  CHECK(said([&] { GgufFile{path}; }) == complaint);
  CHECK(said([&] { H5File::open(path); }) == complaint);
  CHECK(said([&] { H5File::edit(path); }) == complaint);
  CHECK(said([&] { h5_file_flags(path); }) == complaint);
  CHECK_THAT(said([&] { load_config(path); }), Catch::Contains("is a pointer of Git LFS"));
}

TEST_CASE("what only looks like a pointer of Git LFS is none") {
  CHECK_FALSE(git_lfs_complaint("version https://hawser.github.com/spec/v1\n").empty());
  for (const std::string text : {"", "version", "version https://example.com/spec/v1",
                                 "a version https://git-lfs.github.com/spec/v1"})
    CHECK(git_lfs_complaint(text).empty());
  CHECK(git_lfs_complaint(kPointer + std::string(1000, ' ')).empty());  // a text about them
}

}  // namespace
}  // namespace headlab::test_git_lfs
