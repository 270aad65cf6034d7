// What makes two experiments one run.
#include "experiments/runs/same_run.h"
#include "tests/catch.h"

namespace headlab::test_same_run {
namespace {

std::filesystem::path path_of(const std::string& yaml) {
  Experiment experiment;
  read_config(experiment, parse_config(yaml, "x.yaml"));
  return run_path("/out", experiment);
}

TEST_CASE("an option that stands at its default is not in the name of a run, any other is") {
  const std::string base = "name: a\ndata: {kind: char, path: a.txt}\n";
  // Frozen: another value would move every run that exists.
  CHECK(path_of(base) == "/out/a/d064a507-s1337");
  CHECK(path_of(base + "train: {lr: 0.001}\nmodel: {kind: decoder, layers: 4}\n") == path_of(base));
  CHECK(path_of(base + "train: {threads: 2}\n") == path_of(base));
  CHECK(path_of(base + "train: {lr: 0.002}\n") != path_of(base));
  CHECK(path_of(base + "tag: b\n") != path_of(base));
  CHECK(path_of(base + "seed: 3\n").filename().string().ends_with("-s3"));
}

}  // namespace
}  // namespace headlab::test_same_run
