// The manifest of a run: build, machine, data and job.
#include "core/errors.h"
#include "experiments/files/sha256.h"
#include "experiments/runs/run_code.h"
#include "experiments/runs/run_manifest.h"
#include "tests/catch.h"
#include "tests/host_name.h"
#include "tests/scratch.h"

namespace headlab::test_run_manifest {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using Catch::Matchers::StartsWith;
using testing::host_name;
using Json = nlohmann::ordered_json;

TEST_CASE("a manifest names the build, the machine, the data and the job") {
  const Scratch scratch;
  write_bytes(scratch / "data.txt", "abc");
  ::setenv("SLURM_JOB_ID", "4711", 1);
  command_line() = {"headlab", "run"};
  const Json manifest = make_manifest({.torch = "2.11.0",
                                       .cuda = "",
                                       .gpus = {"a GPU"},
                                       .threads = 3,
                                       .seed = 1337,
                                       .data = data_json({scratch / "data.txt"}),
                                       .code = code_json({"mha"})});
  ::unsetenv("SLURM_JOB_ID");
  CHECK(manifest["versions"]["torch"] == "2.11.0");
  CHECK(manifest["versions"]["cuda"].is_null());
  CHECK(manifest["versions"]["hdf5"].get<std::string>().starts_with("1."));
  CHECK(manifest["gpus"] == Json{"a GPU"});
  CHECK(manifest["threads"] == 3);
  CHECK(manifest["seeds"] == Json{{"seed", 1337}});
  CHECK(manifest["argv"] == Json{"headlab", "run"});
  CHECK(manifest["hostname"] == host_name());
  CHECK(manifest["scheduler"] == Json{{"SLURM_JOB_ID", "4711"}});
  CHECK(manifest["start_utc"].get<std::string>().size() == 20);
  CHECK(manifest["end_utc"].is_null());
  CHECK(manifest["code"]["kinds"].contains("mha"));
  if (!manifest["git"].is_null()) {
    CHECK(manifest["git"]["commit"].get<std::string>().size() == 40);
    CHECK(manifest["git"]["dirty"].is_boolean());
  }
}

TEST_CASE("data are known by their contents, which are read where path, size and time are new") {
  const Scratch scratch;
  const fs::path path = scratch / "data.txt";
  write_bytes(path, "abc");
  const Json data = data_json({path});
  REQUIRE(data.size() == 1);
  CHECK(data[0]["path"] == path.string());
  CHECK(data[0]["bytes"] == 3);
  CHECK(data[0]["modified_ns"].is_number_integer());
  CHECK(data[0]["sha256"] == sha256("abc"));
  CHECK_THROWS_AS(data_json({scratch / "none"}), DataError);

  Json known = data;
  known[0]["sha256"] = "believed";
  CHECK(data_json({path}, known)[0]["sha256"] == "believed");
  for (const char* field : {"path", "bytes", "modified_ns"}) {
    Json other = known;
    other[0].erase(field);
    CHECK(data_json({path}, other) == data);
  }
  fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(1));
  CHECK(data_json({path}, known)[0]["sha256"] == sha256("abc"));
  CHECK(data_that_differ(data, data_json({path})).empty());
}

TEST_CASE("a file that is rewritten at its size and time is read again") {
  const Scratch scratch;
  const fs::path path = scratch / "data.txt";
  write_bytes(path, "abc");
  const auto time = fs::last_write_time(path);
  const Json before = data_json({path});
  write_bytes(path, "abd");
  fs::last_write_time(path, time);
  CHECK(data_json({path}, before)[0]["sha256"] == sha256("abd"));
  fs::remove(path);
  write_bytes(path, "abe");
  fs::last_write_time(path, time);
  CHECK(data_json({path}, before)[0]["sha256"] == sha256("abe"));
}

TEST_CASE("a run does not go on with other data than it began with") {
  const auto manifest_with = [](const char* hash) {
    return Json{{"data", {{{"path", "/data/a.txt"}, {"sha256", hash}}}}};
  };
  CHECK_NOTHROW(continue_manifest("/run", manifest_with("1"), manifest_with("1")));
  CHECK_THROWS_WITH(continue_manifest("/run", manifest_with("1"), manifest_with("2")),
                    StartsWith("/run: its data have changed") && Contains("/data/a.txt"));
}

}  // namespace
}  // namespace headlab::test_run_manifest
