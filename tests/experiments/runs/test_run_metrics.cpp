// metrics.jsonl: rows come back, half-written ones do not.
#include <cmath>
#include <limits>

#include "core/errors.h"
#include "experiments/runs/run_metrics.h"
#include "tests/catch.h"
#include "tests/scratch.h"
#include "tests/storage_faults.h"

namespace headlab::test_run_metrics {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using Catch::Matchers::StartsWith;
using Json = nlohmann::ordered_json;

TEST_CASE("metrics come back as they were, numbers that are not finite too") {
  const Scratch scratch;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<MetricsRow> rows = {
      {0, 0, 0, {{"val/loss", 4.25}}},
      {10, 640, 0.1, {{"lr", 1e-300}, {"train/loss", 1.0 / 3}, {"x", -kInfinity}}},
      {20, int64_t{1} << 60, 1e9, {{"y", kInfinity}}}};
  {
    MetricsFile file(scratch / "metrics.jsonl", 0);
    for (const MetricsRow& row : rows) {
      file.append(row);
      CHECK(read_metrics(scratch / "metrics.jsonl").back() == row);
    }
    file.append({30, 1, 1, {{"train/loss", std::nan("")}}});
    file.sync();
  }
  std::vector<MetricsRow> read = read_metrics(scratch / "metrics.jsonl");
  REQUIRE(read.size() == 4);
  CHECK(std::isnan(read.back().values.at("train/loss")));
  read.pop_back();
  CHECK((read == rows));  // MetricsRow cannot be printed
  CHECK(read_bytes(scratch / "metrics.jsonl")
            .ends_with(R"({"step":30,"tokens":1,"wall_s":1.0,"train/loss":"NaN"})"
                       "\n"));
}

TEST_CASE("a resumed run drops the metrics after its checkpoint and a half-written line") {
  const Scratch scratch;
  const fs::path path = scratch / "metrics.jsonl";
  const auto steps = [&] {
    std::vector<int64_t> found;
    for (const MetricsRow& row : read_metrics(path)) found.push_back(row.step);
    return found;
  };
  {
    MetricsFile file(path, 0);
    for (const int64_t step : {0, 10, 20, 30}) file.append({step, 0, 0, {}});
  }
  write_bytes(path, read_bytes(path) + R"({"step":40,"tok)");
  CHECK(steps() == std::vector<int64_t>{0, 10, 20, 30});
  {
    MetricsFile file(path, 30);
    file.append({40, 7, 0, {}});
  }
  CHECK(steps() == std::vector<int64_t>{0, 10, 20, 30, 40});
  {
    MetricsFile file(path, 25);
    file.append({30, 8, 0, {}});
  }
  CHECK(steps() == std::vector<int64_t>{0, 10, 20, 30});
  CHECK(read_metrics(path).back().tokens == 8);
  { const MetricsFile emptied(path, -1); }
  CHECK(read_bytes(path).empty());
}

TEST_CASE("a line that is no row of metrics is named") {
  const Scratch scratch;
  const fs::path path = scratch / "metrics.jsonl";
  for (const char* line :
       {"", "x", "[1]", R"({"tokens":1})", R"({"step":"1"})", R"({"step":1,"tokens":1e300})",
        R"({"step":1,"lr":"high"})", R"({"step":1,"lr":[1]})"}) {
    INFO(line);
    const std::string text = std::string("{\"step\":0}\n") + line + "\n{\"step\":2}\n";
    write_bytes(path, text);
    CHECK_THROWS_WITH(read_metrics(path), StartsWith(path.string() + ":2: is no row of metrics"));
    CHECK_THROWS_AS(MetricsFile(path, 5), RunError);
    CHECK(read_bytes(path) == text);
  }
  CHECK_THROWS_AS(read_metrics(scratch / "none"), RunError);
  CHECK_THROWS_AS(MetricsFile(scratch / "none/metrics.jsonl", 0), RunError);
}

TEST_CASE("metrics that the storage refuses are an error with path and reason") {
  const Scratch scratch;
  MetricsFile file(scratch / "metrics.jsonl", 0);
  file.append({0, 0, 0, {}});
  StorageFault::error = ENOSPC;
  StorageFault::calls_left = 0;
  CHECK_THROWS_WITH(
      file.append({10, 0, 0, {}}),
      (scratch / "metrics.jsonl").string() + ": cannot be written: No space left on device");
  StorageFault::calls_left = 0;
  StorageFault::error = EIO;
  CHECK_THROWS_WITH(file.sync(), Contains("Input/output error"));
  CHECK(read_metrics(scratch / "metrics.jsonl").size() == 1);
}

}  // namespace
}  // namespace headlab::test_run_metrics
