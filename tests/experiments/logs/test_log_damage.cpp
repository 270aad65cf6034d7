// What a log survives: kill -9, a full disk, a second writer, bytes that are not those written.
#include <sys/resource.h>

#include <nlohmann/json.hpp>
#include <random>

#include "core/errors.h"
#include "experiments/logs/log_inspect.h"
#include "experiments/logs/log_repair.h"
#include "experiments/logs/log_walk.h"
#include "experiments/logs/run_log.h"
#include "tests/catch.h"
#include "tests/log_testing.h"

namespace headlab::test_log_damage {
namespace {

using Catch::Matchers::Contains;

// Rows 0, 1, 2, ... without end. Says each row; -n after a sync of n rows.
void log_for_ever(const std::filesystem::path& path, const Child::Say& say, bool swmr) {
  RunLogOptions options;
  options.swmr = swmr;
  RunLog log = RunLog::create(path, small_layout(), options);
  for (int64_t step = 0;; ++step) {
    log_step(log, step);
    say(step);
    if (step % 5 == 3) log.attention("self", step, std::vector<float>(kMapSize, 0.25f));
    if (step % 7 == 6) {
      log.sync();
      say(-(step + 1));
    }
  }
}

// Rows that the child had synced when it was killed after `messages` of what it says.
int64_t run_and_kill(const std::filesystem::path& path, int messages, bool swmr = true) {
  int64_t heard = 0, synced = 0;
  Child child([&](const Child::Say& say) { log_for_ever(path, say, swmr); });
  for (int m = 0; child.hear(heard); ++m) {
    if (heard < 0) synced = -heard;
    if (m == messages) child.kill();  // what it had said by then is still to be heard
  }
  return synced;
}

// The number of records, which must be those of log_step(0), (1), ...
int64_t check_records(const std::filesystem::path& path) {
  const H5File file = H5File::open(path);
  const H5Group root = file.root();
  const auto steps = root.dataset("heads/self/step").read<int64_t>();
  const auto entropy = root.dataset("heads/self/entropy").read<float>();
  const auto losses = root.dataset("scalars/train_loss").read<float>();
  REQUIRE(entropy.size() == steps.size() * 6);
  REQUIRE(losses.size() == root.dataset("scalars/step").rows());
  bool same = true;
  for (size_t row = 0; row < losses.size(); ++row) {
    same = same && losses[row] == static_cast<float>(loss_at(static_cast<int64_t>(row)));
  }
  for (size_t row = 0; row < steps.size(); ++row) {
    same = same && steps[row] == static_cast<int64_t>(row);
    for (int head = 0; head < 6; ++head) {
      const double expected = entropy_at(static_cast<int64_t>(row))[head];
      same = same && entropy[row * 6 + head] == static_cast<float>(expected);
    }
  }
  CHECK(same);
  const auto maps = root.dataset("attention/self/weights").read<uint16_t>();
  CHECK(maps.size() == root.dataset("attention/self/step").rows() * kMapSize);
  CHECK(std::all_of(maps.begin(), maps.end(), [](uint16_t w) { return w == 16384; }));
  return std::min<int64_t>(steps.size(), losses.size());
}

TEST_CASE("after kill -9 a repair recovers every row that was flushed, and the log goes on") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  std::mt19937 random(7);
  for (int round = 0; round < 12; ++round) {
    const int64_t synced = run_and_kill(path, std::uniform_int_distribution(8, 400)(random));
    REQUIRE(synced > 0);
    const auto inspected = inspect_log(path);
    CHECK(inspected["needs_repair"] == true);
    CHECK(inspected["groups"][0]["records"].get<int64_t>() >= synced);
    CHECK_THROWS_AS(H5File::open(path), RunError);
    if (round % 3 == 0) {  // a resume repairs by itself
      RunLog log = RunLog::resume(path, small_layout(), synced - 1, 0);
      for (int64_t step = synced; step < synced + 20; ++step) log_step(log, step);
      log.close(LogStatus::kFinished);
      CHECK(check_records(path) == synced + 20);
      continue;
    }
    const LogRepair repair = repair_log(path);
    CHECK(repair.needed);
    CHECK(repair.groups[0].path == "/scalars");
    CHECK(repair.groups[0].records >= static_cast<hsize_t>(synced));
    CHECK(check_records(path) >= synced);
    CHECK(H5File::open(path).root().text("status") == "stopped");
    CHECK(!repair_log(path).needed);
    CHECK(inspect_log(path)["needs_repair"] == false);
  }
}

TEST_CASE("without SWMR a killed log keeps what was synced") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  for (const int messages : {40, 155}) {
    const int64_t synced = run_and_kill(path, messages, false);
    REQUIRE(synced > 0);
    try {
      CHECK(repair_log(path).needed);
      CHECK(check_records(path) >= synced);
    } catch (const RunError& error) {
      // Allowed there: the file may have been caught halfway. The error says so in one line.
      CHECK_THAT(error.what(), Contains("log.h5"));
    }
  }
}

TEST_CASE("a log that no disk had room to close can be inspected, repaired and gone on with") {
  const Scratch folder;
  int lost = 0;
  for (rlim_t room = 0; room < 8192; room += 256) {
    const auto path = folder / "log.h5";
    Child child([&](const Child::Say&) {
      std::signal(SIGXFSZ, SIG_IGN);
      RunLog log = RunLog::create(path, small_layout());
      for (int64_t step = 0; step < 3; ++step) log_step(log, step);
      log.sync();
      const rlim_t size = std::filesystem::file_size(path) + room;
      const rlimit limit = {size, size};
      setrlimit(RLIMIT_FSIZE, &limit);
      try {
        for (int64_t step = 3; step < 40; ++step) log_step(log, step);
        log.close(LogStatus::kFailed);
      } catch (const RunError&) {
      }
      _exit(0);
    });
    REQUIRE(child.wait() == 0);
    nlohmann::json inspected;
    REQUIRE_NOTHROW(inspected = inspect_log(path));
    lost += inspected["status"] == "lost";
    REQUIRE_NOTHROW(repair_log(path));
    RunLog log = RunLog::resume(path, small_layout(), 2, 0);
    log.close(LogStatus::kFinished);
    REQUIRE(check_records(path) == 3);
    REQUIRE(inspect_log(path)["status"] == "finished");
    std::filesystem::remove(path);
  }
  CHECK(lost > 0);
}

TEST_CASE("rows left over from a record that was not complete are dropped by a repair") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  {
    RunLog log = RunLog::create(path, small_layout());
    for (int64_t step = 0; step < 5; ++step) log_step(log, step);
    log.close(LogStatus::kStopped);
  }
  {  // a writer that dies between a record's values and its key
    Child child([&](const Child::Say&) {
      H5File file = H5File::edit(path);
      H5Dataset loss = file.root().dataset("scalars/train_loss");
      file.start_swmr();
      loss.append<float>(std::vector<float>{7, 8});
      file.flush();
      _exit(0);
    });
    CHECK(child.wait() == 0);
  }
  const LogRepair repair = repair_log(path);
  CHECK(repair.needed);
  CHECK(repair.groups[0].records == 5);
  CHECK(repair.groups[0].dropped == 2);
  CHECK(check_records(path) == 5);
}

TEST_CASE("a record whose key a full disk did not take is no record") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  const bool killed = GENERATE(true, false);  // else the run failed, and closed the file
  {
    RunLog log = RunLog::create(path, small_layout());
    for (int64_t step = 0; step < 5; ++step) log_step(log, step);
    log.close(LogStatus::kStopped);
  }
  Child child([&](const Child::Say&) {
    H5File file = H5File::edit(path);
    const H5Group root = file.root();
    for (const char* group : {"scalars", "eval"}) {
      LogRecords records = log_records(root.group(group)).value();
      for (auto& data : records.columns) data.append<float>(std::vector<float>{7});
      records.key.append<int64_t>(std::vector<int64_t>{0});  // as what was never written reads
    }
    if (killed) file.start_swmr();
    file.flush();
    if (!killed) file.close();
    _exit(0);
  });
  CHECK(child.wait() == 0);
  if (killed) {
    const LogRepair repair = repair_log(path);
    CHECK((repair.groups[0].records == 5 && repair.groups[0].dropped == 1));
    CHECK((repair.groups[1].records == 0 && repair.groups[1].dropped == 1));
  }
  {
    RunLog log = RunLog::resume(path, small_layout(), 4, 0);
    log.eval(5, {{"val_loss", 1}});
    log.close(LogStatus::kFinished);
  }
  CHECK(check_records(path) == 5);
  CHECK(H5File::open(path).root().dataset("eval/step").read<int64_t>() == std::vector<int64_t>{5});
}

TEST_CASE("while the writer lives nobody else may write, and is told who does") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  int64_t heard = 0;
  Child child([&](const Child::Say& say) { log_for_ever(path, say, true); });
  while (child.hear(heard) && heard >= 0) {
  }
  const std::string writer = "is being written by process " + std::to_string(child.process());
  CHECK_THROWS_WITH(repair_log(path), Contains(writer));
  CHECK_THROWS_WITH(RunLog::create(path, small_layout()), Contains(writer));
  CHECK_THROWS_WITH(RunLog::resume(path, small_layout(), 0, 0), Contains(writer));
  const auto inspected = inspect_log(path);
  CHECK_THAT(inspected["writer"].get<std::string>(), Contains(std::to_string(child.process())));
  CHECK(inspected["needs_repair"] == false);
  CHECK(inspected["status"] == "running");
  CHECK(inspected["groups"][0]["records"].get<int64_t>() >= 7);
  child.kill();
  CHECK(repair_log(path).needed);
  check_records(path);
}

TEST_CASE("a log that is written without SWMR cannot be inspected meanwhile") {
  const Scratch folder;
  RunLogOptions options;
  options.swmr = false;
  RunLog log = RunLog::create(folder / "log.h5", small_layout(), options);
  log.sync();
  CHECK_THROWS_WITH(inspect_log(folder / "log.h5"), Contains("log.swmr: false"));
}

TEST_CASE("a disk that is full is reported by the next calls, with the file and the reason") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  // Codes of the child: 1 as it should be.
  Child child([&](const Child::Say& say) {
    std::signal(SIGXFSZ, SIG_IGN);
    RunLog log = RunLog::create(path, small_layout());
    for (int64_t step = 0; step < 10; ++step) log_step(log, step);
    log.sync();
    const rlimit limit = {256 << 10, 256 << 10};  // a write beyond fails as on a full disk
    setrlimit(RLIMIT_FSIZE, &limit);
    std::string first, second, closing;
    for (int64_t step = 10; step < 100000 && first.empty(); ++step) {
      try {
        log_step(log, step);
      } catch (const RunError& error) {
        first = error.what();
      }
    }
    try {
      log.sync();
    } catch (const RunError& error) {
      second = error.what();
    }
    try {
      log.close(LogStatus::kFinished);
    } catch (const RunError& error) {
      closing = error.what();
    }
    const bool named = first.find("log.h5") != std::string::npos &&
                       first.find("File too large") != std::string::npos &&
                       first.find('\n') == std::string::npos;
    say(named && first == second && first == closing);
  });
  int64_t heard = 0;
  REQUIRE(child.hear(heard));
  CHECK(heard == 1);
  CHECK(child.wait() == 0);
  CHECK(repair_log(path).needed);
  CHECK(check_records(path) >= 10);
}

TEST_CASE("what is no log is refused in one line") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  const auto refusal = [&] {
    for (const bool repairing : {false, true}) {
      try {
        if (repairing) {
          repair_log(path);
        } else {
          inspect_log(path);
        }
        FAIL("was taken for a log");
      } catch (const RunError& error) {
        const std::string what = error.what();
        CHECK(what.find('\n') == std::string::npos);
        CHECK_THAT(what, Contains(path.string()));
        if (repairing) return what;
      }
    }
    return std::string();
  };
  for (const std::string& bytes : {std::string(), std::string("text"), std::string(4096, '\0'),
                                   std::string("\x89HDF\r\n\x1a\n"), std::string(5, '\x89')}) {
    write_bytes(path, bytes);
    CHECK_THAT(refusal(), Contains("is not an HDF5 file"));
  }
  write_bytes(path, "\x89HDF\r\n\x1a\n" + std::string(500, '\x03'));
  refusal();
  H5File::create(path).close();
  CHECK_THAT(refusal(), Contains("is not a log of headlab"));
  {
    H5File file = H5File::create(path);
    file.root().set_text("schema_name", "headlab");
    file.root().set_text("schema_version", "2.1.0");
    file.close();
  }
  CHECK_THAT(refusal(), Contains("has schema 2.1.0, this program knows 1.0.0"));
  CHECK_THROWS_WITH(find_log(folder / "nothing.h5"), Contains("there is no such log"));
  CHECK_THROWS_AS(find_log(folder / "nothing"), RunError);
  std::filesystem::create_directory(folder / "run");
  CHECK_THROWS_AS(find_log(folder / "run"), RunError);
  write_bytes(folder / "run/log.h5", "");
  CHECK(find_log(folder / "run") == folder / "run/log.h5");
}

std::string finished_log(const std::filesystem::path& path) {
  RunLog log = RunLog::create(path, small_layout());
  for (int64_t step = 0; step < 30; ++step) log_step(log, step);
  log.attention("self", 3, std::vector<float>(kMapSize, 0.25f));
  log.close(LogStatus::kFinished);
  return read_bytes(path);
}

TEST_CASE("a log that was cut short is refused, and left as it is") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  const std::string whole = finished_log(path);
  for (size_t size = 64; size < whole.size(); size += 4096) {
    write_bytes(path, whole.substr(0, size));
    CHECK_THROWS_WITH(inspect_log(path), Contains("truncated file"));
    CHECK_THROWS_AS(repair_log(path), RunError);
    CHECK_THROWS_AS(RunLog::resume(path, small_layout(), 0, 0), RunError);
    CHECK(read_bytes(path).size() == size);
  }
}

TEST_CASE("a killed log that was cut short as well is refused rather than filled with zeros") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  run_and_kill(path, 60);
  const std::string whole = read_bytes(path);
  for (const double part : {0.2, 0.4, 0.6, 0.8}) {
    const std::string cut = whole.substr(0, static_cast<size_t>(part * whole.size()));
    write_bytes(path, cut);
    CHECK_THROWS_AS(repair_log(path), RunError);
    CHECK_THROWS_AS(inspect_log(path), RunError);
    CHECK(read_bytes(path) == cut);
  }
}

TEST_CASE("bytes that were changed are read or refused, never a crash") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  const std::string whole = finished_log(path);
  std::mt19937 random(3);
  int refused = 0;
  const auto answers = [&](const auto& work) {
    try {
      work();
    } catch (const RunError& error) {
      ++refused;
      CHECK_THAT(error.what(), Contains(path.string()));
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
    }
  };
  for (int round = 0; round < 300; ++round) {
    std::string bytes = whole;
    for (int change = 0; change < 2; ++change) {
      size_t at = random() % bytes.size();
      while (bytes[at] == 0) at = random() % bytes.size();  // most of the file is empty
      bytes[at] = static_cast<char>(random() % 3 ? bytes[at] ^ (1 << random() % 8) : 0xff);
    }
    write_bytes(path, bytes);
    answers([&] { to_text(inspect_log(path)); });
    answers([&] { repair_log(path); });
  }
  CHECK(refused > 80);
}

TEST_CASE("inspect tells the records, the last values and the size of the maps") {
  const Scratch folder;
  finished_log(folder / "log.h5");
  const auto log = inspect_log(folder / "log.h5");
  CHECK(log["status"] == "finished");
  CHECK(log["schema_version"] == "1.0.0");
  CHECK(log["writer"].is_null());
  const auto group = [&](const std::string& path) {
    for (const auto& g : log["groups"]) {
      if (g["path"] == path) return g;
    }
    return nlohmann::ordered_json();
  };
  CHECK(group("/scalars")["records"] == 30);
  CHECK(group("/scalars")["last_step"] == 29);
  CHECK(group("/scalars")["variables"][2]["name"] == "train_loss");
  CHECK(group("/scalars")["variables"][2]["last"] == 3 + 29.0 / 4);
  const auto entropy = group("/heads/self")["variables"][0];
  CHECK(entropy["last"]["min"] == 29.0);
  CHECK(entropy["last"]["max"] == 29.625);
  CHECK(entropy["last"]["mean"] == 29.3125);
  CHECK(entropy["shape"] == std::vector<int>{30, 2, 3});
  CHECK(group("/heads/self")["variables"][1]["last"]["missing"] == 18);  // js was not given
  const auto maps = group("/attention/self");
  CHECK(maps["records"] == 1);
  CHECK(maps["skipped_from"].is_null());
  CHECK(maps["variables"].back()["bytes"] == kMapSize * 2);
  CHECK(maps["variables"].back()["normalization"] == "softmax");
  CHECK_THAT(to_text(log), Contains("/heads/self: 30 records, the last of step 29"));
  CHECK_THAT(to_text(log), Contains("29.312 nat (29 to 29.625)"));
}

}  // namespace
}  // namespace headlab::test_log_damage
