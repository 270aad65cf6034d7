// Means over seeds, and jobs that others run.
#include <fmt/format.h>

#include <cmath>

#include "experiments/sweeps/sweep_jobs.h"
#include "experiments/sweeps/sweep_summary.h"
#include "experiments/sweeps/sweep_table.h"
#include "tests/catch.h"
#include "tests/scratch.h"

namespace headlab::test_sweep_summary {
namespace {

using Catch::Contains;

SweepRow row(const std::string& group, int64_t seed, double loss, const std::string& code = "a") {
  SweepRow made;
  made.group = group, made.name = "n", made.label = fmt::format("{} seed={}", group, seed);
  made.seed = seed, made.code = code;
  made.status.state = PointState::kFinished;
  made.metrics = {{"val/loss", loss}, {"val/tokens", 100}};
  return made;
}

FrozenSweep sweep_of(const std::filesystem::path& folder, size_t points) {
  FrozenSweep sweep{.folder = folder, .out = "/o ut", .name = "s", .points = {}};
  sweep.points.resize(points);
  for (size_t i = 0; i < points; ++i) sweep.points[i].config = folder / fmt::format("{}.yaml", i);
  return sweep;
}

TEST_CASE("means are over the seeds of a group that are finished", "[sweep]") {
  auto stopped = row("x", 4, 100);
  stopped.status.state = PointState::kStopped;
  const auto means =
      means_of({row("x", 1, 1), row("y", 1, 7), row("x", 2, 2), row("x", 3, 6), stopped});
  REQUIRE(means.size() == 2);
  CHECK(means[0].seeds == std::vector<int64_t>{1, 2, 3});
  CHECK(means[0].asked == 4);
  const auto& loss = means[0].metrics.at("val/loss");
  CHECK(loss.mean == Approx(3));
  CHECK(loss.deviation.value() == Approx(std::sqrt(7.0)));
  CHECK(loss.n == 3);
  CHECK_FALSE(means[0].metrics.count("val/tokens"));
  CHECK(means[1].metrics.at("val/loss").mean == 7);
  CHECK_FALSE(means[1].metrics.at("val/loss").deviation);
}

TEST_CASE("rows of different code are apart, and what is not finite stays so", "[sweep]") {
  const auto means = means_of({row("x", 1, 1, "a"), row("x", 2, 5, "b"), row("x", 3, NAN, "b")});
  REQUIRE(means.size() == 2);
  CHECK(means[0].metrics.at("val/loss").mean == 1);
  CHECK(std::isnan(means[1].metrics.at("val/loss").mean));
}

TEST_CASE("rows of different devices or precisions are apart, and the table says which is which",
          "[sweep]") {
  SweepSummary summary{
      .rows = {row("x", 1, 1), row("x", 2, 2), row("x", 3, 4)}, .means = {}, .notices = {}};
  for (auto& one : summary.rows) one.device = "cpu in fp32";
  summary.means = means_of(summary.rows);
  CHECK(summary.means.size() == 1);
  for (const auto& text : {summary_text(summary), rows_csv(summary), means_csv(summary)})
    CHECK_THAT(text, !Contains("device"));
  summary.rows[2].device = "cuda in bf16";
  summary.means = means_of(summary.rows);
  REQUIRE(summary.means.size() == 2);
  CHECK(summary.means[0].metrics.at("val/loss").mean == 1.5);
  CHECK(summary.means[1].metrics.at("val/loss").mean == 4);
  const auto json = summary_json(sweep_of("/s", 0), summary);
  CHECK(json["means"][1]["device"] == "cuda in bf16");
  CHECK(json["points"][0]["device"] == "cpu in fp32");
  CHECK_THAT(summary_text(summary), Contains("device") && Contains("cuda in bf16"));
  CHECK_THAT(rows_csv(summary), Contains(",device\n") && Contains(",cuda in bf16\n"));
  CHECK_THAT(means_csv(summary), Contains(",device\n") && Contains(",cuda in bf16\n"));
}

TEST_CASE("the printed table and the files name metrics, means and code", "[sweep]") {
  SweepSummary summary{.rows = {row("x", 1, 1), row("x", 2, 2)}, .means = {}, .notices = {"mixed"}};
  summary.rows[1].label = "a,\"b\"";
  summary.means = means_of(summary.rows);
  const auto text = summary_text(summary);
  for (const char* part : {"val/loss", "x seed=1", "1.5000 ± 0.7071", "mixed"})
    CHECK_THAT(text, Contains(part));
  CHECK_THAT(rows_csv(summary), Contains("\"a,\"\"b\"\"\",n,,2,finished,0,2,100,,a\n"));
  CHECK_THAT(means_csv(summary), Contains("group,name,n,asked,val/loss mean,val/loss std,code\n"));
}

TEST_CASE("an array script holds at most a thousand points, with its line written in", "[sweep]") {
  const Scratch scratch;
  const auto commands =
      write_slurm_scripts(sweep_of(scratch.path(), 2001),
                          {.program = "/h", .at_once = 4, .threads = 2, .time = "01:00:00"});
  REQUIRE(commands.size() == 3);
  const auto text = [&](int n) { return read_bytes(scratch / fmt::format("sweep-{}.sbatch", n)); };
  CHECK_THAT(text(1), Contains("--array=0-999%4") && Contains("$((SLURM_ARRAY_TASK_ID + 1))p"));
  CHECK_THAT(text(3), Contains("--array=0-0%4") && Contains("$((SLURM_ARRAY_TASK_ID + 2001))p"));
  CHECK_THAT(text(1), Contains("\n/h run \"$config\" --out '/o ut' & pid=$!"));
}

TEST_CASE("a line of the job list is quoted, and sets threads where the configs do not",
          "[sweep]") {
  const Scratch scratch;
  const auto folder = scratch / "it's";
  std::filesystem::create_directories(folder);
  const auto command = write_job_list(
      sweep_of(folder, 1),
      {.program = "/h", .at_once = 2, .threads = 3, .time = "", .sets_threads = true});
  CHECK_THAT(command, Contains("--jobs 2") && Contains("--termseq TERM,60000,KILL,1000 < "));
  CHECK_THAT(read_bytes(folder / "sweep.jobs"),
             Catch::Matchers::StartsWith("OMP_NUM_THREADS=3 /h run '") &&
                 Contains("it'\\''s/0.yaml' --out '/o ut'\n"));
}

TEST_CASE("a limit of time is what Slurm takes", "[sweep]") {
  for (const char* right : {"1:00:00", "12-100:59:59"}) CHECK(is_time_limit(right));
  for (const auto& wrong :
       {std::string(50'000, '1'), fmt::format("1-{}:00:00", std::string(50'000, '1')),
        std::string("-1:00:00"), std::string("1-2-00:00:00"), std::string("00:00:60"),
        std::string("1000:00:00")})
    CHECK_FALSE(is_time_limit(wrong));
  for (const char* right : {"00:10:00", "1-00:00:00", "100:00:00"}) CHECK(is_time_limit(right));
  for (const char* wrong : {"", "10", "10:00", "1h", "00:61:00", "00:10:00 ; x"})
    CHECK_FALSE(is_time_limit(wrong));
}

// What a table writes of a sweep in which the second of two points runs at step 20 of 40.
std::string shown(bool terminal) {
  const Scratch scratch;
  auto sweep = sweep_of(scratch.path(), 2);
  sweep.points[1].run = scratch.path();
  sweep.points[1].experiment.name = "second";
  sweep.points[1].experiment.train.steps = 40;
  std::FILE* file = std::tmpfile();
  double now = 0;
  {
    SweepTable table(sweep, {.file = file, .terminal = terminal, .seconds = [&] { return now; }});
    std::vector<PointStatus> points(2);
    points[0] = {.state = PointState::kFailed, .code = 5, .reason = "diverged"};
    table.changed(0, points[0]);
    points[1].state = PointState::kRunning;
    table.changed(1, points[1]);
    for (const int step : {10, 20}) {
      write_bytes(scratch / "metrics.jsonl",
                  fmt::format("{{\"step\": {}, \"train/loss\": 2.5}}\n{{\"st", step));
      now += 100;
      table.looked(points);
    }
  }
  std::string text(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  CHECK(std::fread(text.data(), 1, text.size(), file) == text.size());
  std::fclose(file);
  return text;
}

TEST_CASE("a table says point, step, loss and time left, live on a terminal only", "[sweep]") {
  const auto plain = shown(false), live = shown(true);
  for (const auto& text : {plain, live}) {
    CHECK_THAT(text, Contains("failed: diverged\n"));
    CHECK_THAT(text, Contains("2/2  second  step 20/40  loss 2.5000  3m 20s left\n"));
    CHECK_THAT(text, Contains("s: 0 of 2 points finished, 1 failed\n"));
  }
  CHECK_THAT(plain, Contains("2/2  second  begins\n") && !Contains("\x1b"));
  CHECK_THAT(live, Contains("\r\x1b[2A\x1b[J"));
}

}  // namespace
}  // namespace headlab::test_sweep_summary
