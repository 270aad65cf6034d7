// What a log cannot do on its file system or in its limits: the run goes on, and is told once.
#include <dlfcn.h>
#include <fcntl.h>
#include <hdf5.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/errors.h"
#include "experiments/files/h5.h"
#include "experiments/logs/log_inspect.h"
#include "experiments/logs/log_repair.h"
#include "experiments/logs/run_log.h"
#include "experiments/system/writer_lock.h"
#include "tests/catch.h"
#include "tests/log_testing.h"

namespace headlab::test_log_notices {

// What the library and the file system refuse. The functions below stand before their own.
enum class Swmr { kGranted, kRefused, kLeftHalfStarted };
Swmr swmr = Swmr::kGranted;
int flock_error = 0, fcntl_error = 0;  // 0: they are granted

struct Refusal {
  explicit Refusal(Swmr how) { swmr = how; }
  ~Refusal() { swmr = Swmr::kGranted; }
};
struct NoLocks {
  explicit NoLocks(int by_flock = ENOLCK, int by_fcntl = 0) {
    flock_error = by_flock, fcntl_error = by_fcntl;
  }
  ~NoLocks() { flock_error = fcntl_error = 0; }
};

}  // namespace headlab::test_log_notices

extern "C" {

herr_t H5Fstart_swmr_write(hid_t file) {
  using headlab::test_log_notices::Swmr;
  const auto real =
      reinterpret_cast<decltype(&H5Fstart_swmr_write)>(dlsym(RTLD_NEXT, "H5Fstart_swmr_write"));
  if (headlab::test_log_notices::swmr == Swmr::kRefused) return -1;
  const herr_t done = real(file);
  return headlab::test_log_notices::swmr == Swmr::kLeftHalfStarted ? -1 : done;
}

int flock(int descriptor, int operation) noexcept {
  const auto real = reinterpret_cast<decltype(&flock)>(dlsym(RTLD_NEXT, "flock"));
  if (headlab::test_log_notices::flock_error == 0) return real(descriptor, operation);
  errno = headlab::test_log_notices::flock_error;
  return -1;
}

// All that is asked of it here has one argument of the size of a pointer, or none.
int fcntl(int descriptor, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  const auto real = reinterpret_cast<int (*)(int, int, ...)>(dlsym(RTLD_NEXT, "fcntl"));
  const bool locks = command == F_OFD_SETLK || command == F_OFD_GETLK;
  if (!locks || headlab::test_log_notices::fcntl_error == 0)
    return real(descriptor, command, argument);
  errno = headlab::test_log_notices::fcntl_error;
  return -1;
}

}  // extern "C"

namespace headlab::test_log_notices {
namespace {

using Catch::Contains;
using Notices = std::vector<std::string>;

void log_steps(RunLog& log, int64_t begin, int64_t end) {
  for (int64_t step = begin; step < end; ++step) log_step(log, step);
}

void check_steps(const std::filesystem::path& path, int64_t end) {
  const H5File file = H5File::open(path);
  std::vector<int64_t> wanted;
  for (int64_t step = 0; step < end; ++step) wanted.push_back(step);
  for (const char* group : {"scalars", "heads/self"}) {
    CHECK(file.root().dataset(std::string(group) + "/step").read<int64_t>() == wanted);
  }
  CHECK(file.root().dataset("scalars/train_loss").read<float>().back() ==
        static_cast<float>(loss_at(end - 1)));
}

TEST_CASE("where SWMR is refused the run goes on without, and says so once") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  const Refusal refusal(GENERATE(Swmr::kRefused, Swmr::kLeftHalfStarted));
  {
    RunLog log = RunLog::create(path, small_layout());
    const Notices notices = log.take_notices();
    REQUIRE(notices.size() == 1);
    CHECK_THAT(notices[0], Contains("log.h5: SWMR writing cannot be started"));
    CHECK_THAT(notices[0], Contains("cannot be read while the run writes it"));
    CHECK_THAT(notices[0], Contains("a kill loses the rows since the last checkpoint"));
    log_steps(log, 0, 30);
    log.sync();
    CHECK(log.take_notices().empty());
    CHECK_THROWS_WITH(inspect_log(path), Contains("log.swmr: false"));
    log.close(LogStatus::kStopped);
  }
  check_steps(path, 30);
  {
    RunLog log = RunLog::resume(path, small_layout(), 19, 1);
    CHECK(log.take_notices().size() == 1);
    log_steps(log, 20, 2000);
    CHECK(log.take_notices().empty());
    log.close(LogStatus::kFinished);
  }
  check_steps(path, 2000);
  CHECK(H5File::open(path).root().text("status") == "finished");
  CHECK(H5File::open(path).root().dataset("resumes/step").read<int64_t>() ==
        std::vector<int64_t>{19});
}

TEST_CASE("a run that asked for no SWMR is told what that costs, others are told nothing") {
  const Scratch folder;
  RunLogOptions options;
  options.swmr = GENERATE(true, false);
  RunLog log = RunLog::create(folder / "log.h5", small_layout(), options);
  const Notices none,
      some = {
          "log.swmr is false: log.h5 cannot be read while the run writes it, and a kill loses the "
          "rows since the last checkpoint"};
  CHECK(log.take_notices() == (options.swmr ? none : some));
  CHECK(log.take_notices().empty());
  log.close(LogStatus::kFinished);
}

TEST_CASE("a log is written and resumed where the file system knows no locks") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  {
    const NoLocks none;
    RunLog log = RunLog::create(path, small_layout());
    CHECK(log.take_notices().empty());
    log_steps(log, 0, 30);
    log.close(LogStatus::kStopped);
    CHECK_THROWS_AS(H5File::edit(path), RunError);  // which HDF5 asks for
    LogLayout layout = small_layout();
    CHECK(drop_unlogged(path, layout.sites, layout.evals).empty());
    RunLog again = RunLog::resume(path, small_layout(), 19, 1);
    log_steps(again, 20, 40);
    again.close(LogStatus::kFinished);
  }
  check_steps(path, 40);
}

TEST_CASE("where flock fails, a lock of fcntl keeps a second writer out") {
  const Scratch folder;
  const auto path = folder / "a";
  const NoLocks none(GENERATE(ENOSYS, ENOLCK, EOPNOTSUPP, EINVAL, EIO));
  {
    const WriterLock first(path);
    CHECK_THROWS_AS(WriterLock(path), TakenError);
    CHECK_THROWS_WITH(WriterLock(path), Contains("is being written by process"));
    CHECK(WriterLock::holder(path));
    CHECK_THROWS_AS(WriterLock(path), TakenError);  // a look has not freed it
  }
  CHECK_FALSE(WriterLock::holder(path));
  CHECK_NOTHROW(WriterLock(path));
}

TEST_CASE("that there are no locks at all is said once, and the run goes on") {
  const Scratch folder;
  const auto said = folder / "said";
  const int error = GENERATE(ENOSYS, ENOLCK, EOPNOTSUPP);
  const pid_t child = fork();
  if (child == 0) {
    const NoLocks none(error, error);
    if (!std::freopen(said.c_str(), "w", stderr)) _exit(1);
    { const WriterLock first(folder / "a"), second(folder / "a"), other(folder / "b"); }
    std::fflush(stderr);
    _exit(WriterLock::holder(folder / "a") ? 1 : 0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  const auto text = read_bytes(said);
  CHECK_THAT(text, Contains("a.lock: its file system has no locks") &&
                       Contains("nothing keeps a second process from writing"));
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);
}

TEST_CASE("that maps have ended is said once, for all sites") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  LogLayout layout = small_layout();
  layout.sites.push_back(layout.sites[0]);
  layout.sites[0].name = "decoder_self";
  layout.sites[1].name = "cross";
  const std::vector<float> map(kMapSize, 0.5f);
  RunLogOptions options;
  options.max_bytes = 3 * map_bytes(layout.sites[0]) + 1;
  {
    RunLog log = RunLog::create(path, layout, options);
    for (const int64_t step : {0, 10, 20}) {
      if (step < 20) CHECK(log.take_notices().empty());
      log.attention("decoder_self", step, map);
      log.attention("cross", step, map);
    }
    CHECK(log.take_notices() ==
          Notices{"attention maps end at step 10: log.attention.max_bytes, 577, is reached"});
    CHECK(log.take_notices().empty());
    log.close(LogStatus::kStopped);
  }
  RunLog log = RunLog::resume(path, layout, 20, 0, options);  // it is known by now
  CHECK(!log.attention("cross", 30, map));
  CHECK(log.take_notices().empty());
  log.close(LogStatus::kFinished);
}

}  // namespace
}  // namespace headlab::test_log_notices
