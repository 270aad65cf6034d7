// The run log: rows read back, records are complete or do not count, a resume leaves no gap.
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string>

#include "core/errors.h"
#include "experiments/files/h5.h"
#include "experiments/logs/log_file.h"
#include "experiments/logs/log_repair.h"
#include "experiments/logs/result_arrays.h"
#include "experiments/logs/run_log.h"
#include "tests/catch.h"
#include "tests/host_name.h"
#include "tests/log_testing.h"

namespace headlab::test_log {
namespace {

using Catch::Contains;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> map_at(int64_t step) {
  std::vector<float> map(kMapSize);
  for (size_t i = 0; i < map.size(); ++i) map[i] = static_cast<float>((i + step) % 11) / 10;
  return map;
}

// Steps of a group, and whether the values of scalars and heads are those of log_step().
std::vector<int64_t> steps_of(const H5File& file, const std::string& group) {
  return file.root().dataset(group + "/step").read<int64_t>();
}

void check_rows(const H5File& file, const std::vector<int64_t>& steps) {
  CHECK(steps_of(file, "scalars") == steps);
  CHECK(steps_of(file, "heads/self") == steps);
  const auto losses = file.root().dataset("scalars/train_loss").read<float>();
  const auto entropy = file.root().dataset("heads/self/entropy").read<float>();
  REQUIRE(losses.size() == steps.size());
  REQUIRE(entropy.size() == steps.size() * 6);
  for (size_t row = 0; row < steps.size(); ++row) {
    CHECK(losses[row] == static_cast<float>(loss_at(steps[row])));
    for (int head = 0; head < 6; ++head) {
      CHECK(entropy[row * 6 + head] == static_cast<float>(entropy_at(steps[row])[head]));
    }
  }
}

std::vector<int64_t> range(int64_t end, int64_t stride = 1) {
  std::vector<int64_t> steps;
  for (int64_t step = 0; step < end; step += stride) steps.push_back(step);
  return steps;
}

TEST_CASE("rows that were logged read back after closing") {
  const Scratch folder;
  RunLog log = RunLog::create(folder / "log.h5", small_layout());
  for (const int64_t step : range(137)) log_step(log, step);
  log.eval(100, {{"val_loss", 2.5}});
  CHECK(log.attention("self", 100, map_at(100)));
  log.close(LogStatus::kFinished);

  const H5File file = H5File::open(folder / "log.h5");
  const H5Group root = file.root();
  check_rows(file, range(137));
  CHECK(root.text("status") == "finished");
  CHECK(root.text("run_id") == "small/12345678-s1");
  CHECK(root.dataset("scalars/wall_time").read<double>()[136] == 68);
  CHECK(root.dataset("scalars/tokens").read<int64_t>()[136] == 1360);
  CHECK(root.dataset("eval/val_loss").read<float>() == std::vector<float>{2.5});
  CHECK(steps_of(file, "attention/self") == std::vector<int64_t>{100});
  CHECK(root.dataset("resumes/row").rows() == 0);
  CHECK(root.dataset("vocab/text").read_text() == std::vector<std::string>{"a", "b"});
  CHECK(!std::filesystem::exists(folder / "log.h5.lock"));
  CHECK(!std::filesystem::exists(folder / "log.h5.new"));
}

TEST_CASE("what a row does not say is missing, and a head that is not alive says nothing") {
  const Scratch folder;
  RunLog log = RunLog::create(folder / "log.h5", small_layout());
  const std::vector<uint8_t> alive = {1, 0, 1, 1, 1, 1};
  log.heads("self", 0, {{"js", std::vector<double>(18, 0.5)}, {"residual_ratio", {1, 2}}}, alive);
  log.scalars(0, 0, 0, {});
  log.close(LogStatus::kFinished);
  const H5File file = H5File::open(folder / "log.h5");
  const H5Group heads = file.root().group("heads/self");
  CHECK(heads.dataset("head_mask").read<uint8_t>() == alive);
  CHECK(std::isnan(file.root().dataset("scalars/train_loss").read<float>()[0]));
  for (const float value : heads.dataset("entropy").read<float>()) CHECK(std::isnan(value));
  CHECK(heads.dataset("residual_ratio").read<float>() == std::vector<float>{1, 2});
  const auto js = heads.dataset("js").read<float>();
  for (int i = 0; i < 18; ++i) {
    const bool dead = i < 9 && (i / 3 == 1 || i % 3 == 1);
    CHECK(std::isnan(js[i]) == dead);
  }
}

TEST_CASE("counts are whole numbers in the file, however large, and one that is not there is -1") {
  const Scratch folder;
  LogLayout layout = small_layout();
  layout.evals.push_back({"val_tokens", "token", "scored targets", "how many", /*counts=*/true});
  RunLog log = RunLog::create(folder / "log.h5", layout);
  constexpr int64_t kMany = (int64_t{1} << 24) + 1;  // no float32
  log.eval(1, {{"val_tokens", static_cast<double>(kMany)}});
  log.eval(2, {{"val_loss", 1}});
  log.close(LogStatus::kFinished);
  const H5File file = H5File::open(folder / "log.h5");
  const auto tokens = file.root().dataset("eval/val_tokens");
  CHECK(tokens.type() == H5Type::kI64);
  CHECK(tokens.read<int64_t>() == std::vector<int64_t>{kMany, kNoCount});
}

TEST_CASE("a log that an older version began with floating-point counts goes on") {
  const Scratch folder;
  LogLayout older = small_layout(), now = small_layout();
  older.evals.push_back({"val_tokens", "token", "scored targets", "how many"});
  now.evals.push_back({"val_tokens", "token", "scored targets", "how many", /*counts=*/true});
  RunLog log = RunLog::create(folder / "log.h5", older);
  log.eval(1, {{"val_tokens", 640}});
  log.close(LogStatus::kStopped);
  RunLog again = RunLog::resume(folder / "log.h5", now, 1, 0.5);
  again.eval(2, {{"val_tokens", 1280}, {"val_loss", 2}});
  again.sync();
  CHECK(again.numbers("eval").at("val_tokens") == std::vector<double>{640, 1280});
  again.close(LogStatus::kFinished);
  const H5File file = H5File::open(folder / "log.h5");
  CHECK(file.root().dataset("eval/val_tokens").read<int64_t>() == std::vector<int64_t>{640, 1280});
  CHECK(file.root().dataset("eval/val_loss").read<float>()[1] == 2);
}

TEST_CASE("counts of an analysis and of what it was measured on are whole numbers") {
  const Scratch folder;
  const LabelledAxis axis{{"head", "1", "head", "original index"}, 2};
  LabelledArray some{
      {"examples", "1", "examples", "how many", /*counts=*/true}, {"head"}, {7, kNaN}};
  some.count_attributes = {{"tokens", 81920}};
  LabelledArray all = some;
  all.about.name = "kept", all.values = {7, 8};
  write_results(folder / "found.h5", {}, {{"ablation/self", {axis}, {some, all}}});
  const H5File file = H5File::open(folder / "found.h5");
  const auto group = file.root().group("ablation/self");
  CHECK(group.dataset("examples").type() == H5Type::kI64);
  CHECK(group.dataset("examples").read<int64_t>() == std::vector<int64_t>{7, kNoCount});
  CHECK(group.dataset("examples").number("_FillValue") == kNoCount);
  CHECK(group.dataset("kept").read<int64_t>() == std::vector<int64_t>{7, 8});
  CHECK_FALSE(group.dataset("kept").has_attribute("_FillValue"));
  CHECK(group.dataset("kept").number("tokens") == 81920);
}

TEST_CASE("what a killed process left of the same folder's results goes, what others write stays") {
  const Scratch folder;
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  REQUIRE(::waitpid(dead, nullptr, 0) == dead);
  const auto name = [](const std::string& of, const std::string& host, pid_t maker) {
    return "." + of + "@" + host + "@" + std::to_string(maker) + ".headlab.tmp";
  };
  const auto here = testing::host_name();
  const auto process = std::to_string(dead);
  const std::vector<std::string> gone{name("a.h5", here, dead), name("b.h5", here, dead),
                                      ".a.h5." + process + ".tmp"};
  const std::set<std::string> stay{name("a.h5", here, ::getppid()),
                                   name("a.h5", "not." + here, dead), ".b.h5." + process + ".tmp",
                                   ".a.h5..tmp", "a.h5"};
  for (const auto& file : gone) write_bytes(folder / file, "");
  for (const auto& file : stay) write_bytes(folder / file, "");
  require_place(folder / "a.h5");
  CHECK(names_in(folder.path()) == stay);
}

TEST_CASE("statistics by expert have an axis of experts, where there are any") {
  const Scratch folder;
  LogLayout layout = small_layout();
  layout.sites[0].experts = 4;
  for (const char* name : {"selected", "probability"})
    layout.sites[0].statistics.push_back(
        {{name, "1", "of an expert", "mean over tokens"}, LogDims::kLayerHeadExpert});
  RunLog log = RunLog::create(folder / "log.h5", layout);
  const std::vector<uint8_t> alive = {1, 0, 1, 1, 1, 1};
  std::vector<double> selected(2 * 3 * 4);
  std::iota(selected.begin(), selected.end(), 0);
  log.heads("self", 0, {{"selected", selected}}, alive);
  CHECK_THROWS_AS(log.heads("self", 1, {{"selected", std::vector<double>(18, 1)}}),
                  std::invalid_argument);
  log.close(LogStatus::kFinished);
  const H5File file = H5File::open(folder / "log.h5");
  const H5Group heads = file.root().group("heads/self");
  CHECK(heads.dataset("expert").read<int32_t>() == std::vector<int32_t>{0, 1, 2, 3});
  const H5Dataset stored = heads.dataset("selected");
  CHECK(stored.extent() == H5Extent{1, 2, 3, 4});
  const auto values = stored.read<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    if (i / 4 == 1)  // the head that is not alive
      CHECK(std::isnan(values[i]));
    else
      CHECK(values[i] == static_cast<float>(i));
  }
  for (const float value : heads.dataset("probability").read<float>()) CHECK(std::isnan(value));

  RunLog plain = RunLog::create(folder / "plain.h5", small_layout());
  plain.close(LogStatus::kFinished);
  const H5File without = H5File::open(folder / "plain.h5");
  CHECK_FALSE(without.root().group("heads/self").has_dataset("expert"));
}

TEST_CASE("rows that do not fit the layout are refused and leave the log as it was") {
  const Scratch folder;
  RunLog log = RunLog::create(folder / "log.h5", small_layout());
  log_step(log, 5);
  CHECK_THROWS_WITH(log.scalars(6, 0, 0, {{"lr", 1}}), Contains("/scalars has no variable lr"));
  CHECK_THROWS_WITH(log.scalars(6, 0, 0, {{"wall_time", 1}}), Contains("has no variable"));
  CHECK_THROWS_WITH(log.scalars(5, 0, 0, {}), Contains("/scalars: step 5 after step 5"));
  CHECK_THROWS_WITH(log.heads("self", 6, {{"entropy", {1, 2}}}),
                    Contains("/heads/self/entropy: 2 values given, 6 wanted"));
  CHECK_THROWS_WITH(log.heads("self", 6, {}, std::vector<uint8_t>(5, 1)),
                    Contains("head_mask: 5 values given, 6 wanted"));
  CHECK_THROWS_AS(log.heads("cross", 6, {}), std::invalid_argument);
  CHECK_THROWS_AS(log.attention("self", 6, std::vector<float>(7)), std::invalid_argument);
  log_step(log, 6);
  log.close(LogStatus::kStopped);
  CHECK_THROWS_AS(log.scalars(7, 0, 0, {}), std::logic_error);
  const H5File file = H5File::open(folder / "log.h5");
  check_rows(file, {5, 6});
  CHECK(file.root().text("status") == "stopped");
}

TEST_CASE("layouts that contradict themselves are refused") {
  const Scratch folder;
  LogLayout twice = small_layout();
  twice.scalars.push_back(twice.scalars[0]);
  CHECK_THROWS_WITH(RunLog::create(folder / "log.h5", twice), Contains("is given twice"));
  LogLayout tokens = small_layout();
  tokens.sites[0].maps->query_token.pop_back();
  CHECK_THROWS_WITH(RunLog::create(folder / "log.h5", tokens), Contains("5 values, 6 wanted"));
  LogLayout composed = small_layout();
  composed.sites[0].maps->normalization = "composed";
  CHECK_THROWS_WITH(RunLog::create(folder / "log.h5", composed), Contains("cannot be packed"));
  CHECK(!std::filesystem::exists(folder / "log.h5"));
}

TEST_CASE("a log that is left without a word is closed as failed, with its rows") {
  const Scratch folder;
  {
    RunLog log = RunLog::create(folder / "log.h5", small_layout());
    log_step(log, 0);
  }
  const H5File file = H5File::open(folder / "log.h5");
  check_rows(file, {0});
  CHECK(file.root().text("status") == "failed");
}

TEST_CASE("without SWMR whole chunks are written, and everything at a sync") {
  const Scratch folder;
  const LogLayout layout = small_layout();
  RunLogOptions options;
  options.swmr = false;
  {
    LogFile log(folder / "log.h5", log_groups(layout), options);
    log.create(layout);
    const std::vector<std::byte> row(log_groups(layout)[0].row_bytes());
    for (const int64_t step : range(1023)) log.add(0, step, row);
    CHECK(log.table(0).rows() == 0);
    CHECK(!log.deadline());
    log.add(0, 1023, row);
    CHECK(log.table(0).rows() == 1024);
    log.add(0, 1024, row);
    log.sync();
    CHECK(log.table(0).rows() == 1025);
    log.close("stopped");
  }
  CHECK(steps_of(H5File::open(folder / "log.h5"), "scalars") == range(1025));
}

TEST_CASE("a resumed log has neither gaps nor duplicates, and says where it was resumed") {
  const Scratch folder;
  const LogLayout layout = small_layout();
  const bool swmr = GENERATE(true, false);
  RunLogOptions options;
  options.swmr = swmr;
  {
    RunLog log = RunLog::create(folder / "log.h5", layout, options);
    for (const int64_t step : range(50)) {
      log_step(log, step);
      if (step % 10 == 5) log.eval(step, {{"val_loss", loss_at(step)}});
      if (step % 20 == 0) log.attention("self", step, map_at(step));
    }
    log.close(LogStatus::kStopped);
  }
  for (const int64_t checkpoint : {37, 39, 20}) {
    RunLog log = RunLog::resume(folder / "log.h5", layout, checkpoint, 1.5, options);
    CHECK_THROWS_AS(log.scalars(checkpoint, 0, 0, {}), std::invalid_argument);
    for (int64_t step = checkpoint + 1; step < 60; ++step) {
      log_step(log, step);
      if (step % 10 == 5) log.eval(step, {{"val_loss", loss_at(step)}});
      if (step % 20 == 0) log.attention("self", step, map_at(step));
    }
    log.close(LogStatus::kFinished);
  }
  const H5File file = H5File::open(folder / "log.h5");
  check_rows(file, range(60));
  CHECK(steps_of(file, "eval") == std::vector<int64_t>{5, 15, 25, 35, 45, 55});
  CHECK(steps_of(file, "attention/self") == std::vector<int64_t>{0, 20, 40});
  const H5Group resumes = file.root().group("resumes");
  CHECK(resumes.dataset("row").read<int64_t>() == std::vector<int64_t>{0, 1, 2});
  CHECK(resumes.dataset("step").read<int64_t>() == std::vector<int64_t>{37, 39, 20});
  CHECK(resumes.dataset("wall_time").read<double>() == std::vector<double>{1.5, 1.5, 1.5});
  CHECK(file.root().text("status") == "finished");
}

TEST_CASE("a log is resumed only by its own run and layout") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  { RunLog::create(path, small_layout()).close(LogStatus::kStopped); }
  LogLayout other = small_layout();
  other.run_id = "other";
  CHECK_THROWS_WITH(RunLog::resume(path, other, 0, 0),
                    Contains("is the log of run small/12345678-s1, not of other"));
  LogLayout wider = small_layout();
  wider.sites[0].heads = 4;
  CHECK_THROWS_WITH(RunLog::resume(path, wider, 0, 0), Contains("/heads/self/head: has not"));
  LogLayout more = small_layout();
  more.scalars.push_back({"lr", "1", "learning rate", "learning rate"});
  CHECK_THROWS_WITH(RunLog::resume(path, more, 0, 0), Contains("/scalars: has no dataset lr"));
  LogLayout loose = small_layout();
  loose.sites[0].maps->packed = false;
  CHECK_THROWS_WITH(RunLog::resume(path, loose, 0, 0),
                    Contains("/attention/self/weights: has not"));
  {
    H5File file = H5File::edit(path);
    file.root().set_text("schema_version", "2.0.0");
    file.close();
  }
  CHECK_THROWS_WITH(RunLog::resume(path, small_layout(), 0, 0), Contains("has schema 2.0.0"));
  CHECK_THROWS_AS(RunLog::resume(folder / "none.h5", small_layout(), 0, 0), RunError);
}

TEST_CASE("a log goes on without the statistics that it was begun without") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  LogLayout layout = small_layout();
  LogSite& site = layout.sites[0];
  const std::vector<LogStatistic> all = site.statistics;
  site.statistics = {all[0]};
  {
    RunLog log = RunLog::create(path, layout);
    for (const int64_t step : range(5)) log_step(log, step);
    log.close(LogStatus::kStopped);
  }
  site.statistics = all;
  CHECK_THROWS_WITH(RunLog::resume(path, layout, 4, 0), Contains("/heads/self"));
  CHECK(drop_unlogged(path, layout.sites, layout.evals) ==
        std::vector<std::string>{"js", "residual_ratio"});
  CHECK(drop_unlogged(path, layout.sites, layout.evals).empty());
  {
    RunLog log = RunLog::resume(path, layout, 4, 0);
    for (int64_t step = 5; step < 9; ++step) log_step(log, step);
    CHECK_THROWS_AS(log.heads("self", 9, {{"js", {}}}), std::invalid_argument);
    log.close(LogStatus::kFinished);
  }
  check_rows(H5File::open(path), range(9));
  site.name = "cross";  // resume() says what is wrong
  CHECK(drop_unlogged(path, layout.sites, layout.evals).empty());
  CHECK_THROWS_AS(drop_unlogged(folder / "none.h5", layout.sites, layout.evals), RunError);
}

TEST_CASE("images of probes stay through a resume, and a log without them goes on without") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  LogLayout without = small_layout(), layout = without;
  const std::vector<uint8_t> pixels = {0, 1, 2, 253, 254, 255, 7, 0, 9, 255, 11, 12};
  layout.sites[0].maps->images =
      LogImages{.channels = 1, .rows = 2, .columns = 3, .patch = 1, .pixels = pixels};
  const auto end_with = [](RunLog log, int64_t step) {
    log_step(log, step);
    log.close(LogStatus::kStopped);
  };
  const auto logged = [&] {
    return H5File::open(path).root().dataset("attention/self/image").read<uint8_t>();
  };
  end_with(RunLog::create(path, layout), 0);
  CHECK(logged() == pixels);
  CHECK(drop_unlogged(path, layout.sites, layout.evals).empty());
  end_with(RunLog::resume(path, layout, 0, 0), 1);
  CHECK(logged() == pixels);

  end_with(RunLog::create(path, without), 0);
  CHECK_THROWS_WITH(RunLog::resume(path, layout, 0, 0), Contains("/attention/self"));
  CHECK(drop_unlogged(path, layout.sites, layout.evals) == std::vector<std::string>{"image"});
  end_with(RunLog::resume(path, layout, 0, 0), 1);
  check_rows(H5File::open(path), range(2));
}

TEST_CASE("a log goes on without the numbers of evaluations that it was begun without") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  LogLayout layout = small_layout();
  const auto begun = layout.evals;
  {
    RunLog log = RunLog::create(path, layout);
    for (const int64_t step : range(5)) log_step(log, step);
    log.close(LogStatus::kStopped);
  }
  layout.evals.push_back({"val_examples", "1", "validation examples", "count"});
  CHECK_THROWS_WITH(RunLog::resume(path, layout, 4, 0), Contains("/eval"));
  CHECK(drop_unlogged(path, layout.sites, layout.evals) ==
        std::vector<std::string>{"val_examples"});
  CHECK(layout.evals.size() == begun.size());
  RunLog log = RunLog::resume(path, layout, 4, 0);
  log.close(LogStatus::kFinished);
}

TEST_CASE("weights out of [0, 1] are refused by place, and nothing of them is written") {
  const Scratch folder;
  RunLog log = RunLog::create(folder / "log.h5", small_layout());
  std::vector<float> map = map_at(0);
  // [probe 1, layer 1, head 2, query 0, key 3] of [2, 2, 2, 3, 4]
  const size_t at = (((1 * 2 + 1) * 2 + 1) * 3 + 0) * 4 + 3;
  for (const float wrong : {1.00001f, -0.1f, std::numeric_limits<float>::infinity()}) {
    map[at] = wrong;
    CHECK_THROWS_WITH(log.attention("self", 0, map),
                      Contains("layer 1, head 2, query 0, key 3 is not in [0, 1]"));
  }
  CHECK_THROWS_AS(log.attention("self", 0, map), RunError);
  CHECK(log.attention("self", 0, map_at(3)));
  log_step(log, 0);
  log.close(LogStatus::kFinished);
  const H5File file = H5File::open(folder / "log.h5");
  CHECK(steps_of(file, "attention/self") == std::vector<int64_t>{0});
  CHECK(file.root().dataset("attention/self/weights").read<uint16_t>()[0] == 19660);  // 0.3
  check_rows(file, {0});
}

TEST_CASE("composed maps keep their signs and their missing positions") {
  const Scratch folder;
  LogLayout layout = small_layout();
  layout.sites[0].maps->normalization = "composed";
  layout.sites[0].maps->packed = false;
  std::vector<float> map = map_at(0);
  map[7] = -12.25f;
  map[8] = kNaN;
  {
    RunLog log = RunLog::create(folder / "log.h5", layout);
    CHECK(log.attention("self", 0, map));
    log.close(LogStatus::kFinished);
  }
  const auto stored =
      H5File::open(folder / "log.h5").root().dataset("attention/self/weights").read<float>();
  REQUIRE(stored.size() == map.size());
  for (size_t i = 0; i < map.size(); ++i) {
    CHECK((i == 8 ? std::isnan(stored[i]) : stored[i] == map[i]));
  }
}

TEST_CASE("maps stop at max_bytes, statistics go on, and the log says since when") {
  const Scratch folder;
  const LogLayout layout = small_layout();
  CHECK(map_bytes(layout.sites[0]) == kMapSize * 2);
  RunLogOptions options;
  options.max_bytes = 3 * map_bytes(layout.sites[0]) + 1;
  const auto skipped_from = [&] {
    return H5File::open(folder / "log.h5")
        .root()
        .dataset("attention/self/skipped_from")
        .read<int64_t>()[0];
  };
  {
    RunLog log = RunLog::create(folder / "log.h5", layout, options);
    for (const int64_t step : range(60)) {
      log_step(log, step);
      if (step % 10 == 0) CHECK(log.attention("self", step, map_at(step)) == (step < 30));
    }
    log.close(LogStatus::kStopped);
  }
  CHECK(skipped_from() == 30);
  {
    const H5File file = H5File::open(folder / "log.h5");
    CHECK(steps_of(file, "attention/self") == std::vector<int64_t>{0, 10, 20});
    check_rows(file, range(60));
  }
  // A resume counts what is there; before the limit was reached nothing has been left out.
  {
    RunLog log = RunLog::resume(folder / "log.h5", layout, 15, 0, options);
    CHECK(log.attention("self", 20, map_at(20)));
    log.close(LogStatus::kStopped);
  }
  CHECK(skipped_from() == -1);
  {
    RunLog log = RunLog::resume(folder / "log.h5", layout, 25, 0, options);
    CHECK(!log.attention("self", 30, map_at(30)));
    CHECK(!log.attention("self", 40, map_at(40)));
    log.close(LogStatus::kStopped);
  }
  CHECK(skipped_from() == 30);
  {
    RunLog log = RunLog::resume(folder / "log.h5", layout, 35, 0, options);
    CHECK(!log.attention("self", 40, map_at(40)));
    log.close(LogStatus::kFinished);
  }
  CHECK(skipped_from() == 30);
}

}  // namespace
}  // namespace headlab::test_log
