// What a log survives: a disk that is full.
#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "core/errors.h"
#include "experiments/logs/log_inspect.h"
#include "experiments/logs/log_repair.h"
#include "experiments/logs/log_walk.h"
#include "experiments/logs/run_log.h"
#include "tests/catch.h"
#include "tests/log_testing.h"

namespace headlab::test_log_full_disk {
namespace {

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

}  // namespace
}  // namespace headlab::test_log_full_disk
