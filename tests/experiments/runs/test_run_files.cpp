// Run directories: identity, making, taking, finding, status.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>

#include "core/errors.h"
#include "experiments/files/sha256.h"
#include "experiments/runs/begin_run.h"
#include "experiments/runs/run_files.h"
#include "experiments/runs/run_metrics.h"
#include "experiments/system/child_process.h"
#include "experiments/system/writer_lock.h"
#include "tests/catch.h"
#include "tests/host_name.h"
#include "tests/scratch.h"
#include "tests/storage_faults.h"

namespace headlab::test_run_files {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using Catch::Matchers::StartsWith;
using testing::host_name;
using Json = nlohmann::ordered_json;

const Json kManifest{{"status", "running"}, {"end_utc", nullptr}};

Json json_of(const fs::path& path) { return Json::parse(read_bytes(path)); }

// A process that runs `start`, says so, and then waits to be killed.
class Other {
 public:
  explicit Other(const std::function<void()>& start) {
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      try {
        start();
        if (::write(ready[1], "x", 1) == 1) ::pause();
      } catch (...) {  // must not reach the test program's own
      }
      ::_exit(1);
    }
    ::close(ready[1]);
    char byte;
    const bool started = ::read(ready[0], &byte, 1) == 1;
    ::close(ready[0]);
    REQUIRE(started);
  }
  ~Other() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  std::string name() const { return "process " + std::to_string(pid_) + " on " + host_name(); }

 private:
  pid_t pid_ = 0;
};

TEST_CASE("SHA-256 gives the digests of the standard") {
  CHECK(sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const Scratch scratch;
  write_bytes(scratch / "a", std::string(1'000'000, 'a'));
  CHECK(sha256_of_file(scratch / "a") ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  CHECK_THROWS_AS(sha256_of_file(scratch / "b"), DataError);
}

TEST_CASE("the hash of a config is that of everything but seed, threads and order of keys") {
  const auto hash = [](const std::string& yaml) {
    return config_hash(parse_config(yaml, "x.yaml"));
  };
  const std::string base = "{name: a, seed: 1, train: {lr: 0.1, threads: 2, betas: [1, 2]}}";
  // Frozen: another value would orphan every run that exists.
  CHECK(hash(base) == "56bea8a6");
  CHECK(hash("{name: a, seed: 2, train: {lr: 0.1, threads: 3, betas: [1, 2]}}") == hash(base));
  CHECK(hash("{train: {betas: [1, 2], lr: 0.1}, name: a}") == hash(base));
  CHECK(hash("{name: a, seed: 1, train: {lr: 0.2, threads: 2, betas: [1, 2]}}") != hash(base));
  CHECK(hash("{name: a, seed: 1, train: {lr: 0.1, threads: 2, betas: [2, 1]}}") != hash(base));
  CHECK(hash("{name: a, train: {lr: 0.1, betas: [1, 2]}, threads: 2}") != hash(base));
  CHECK(hash("{name: a, train: {lr: 0.1, betas: [1, 2], seed: 1}}") != hash(base));
  CHECK(run_path("out", "a", "0123abcd", 7) == fs::path("out/a/0123abcd-s7"));
}

TEST_CASE("a run is made whole, with its parents, and taken while it lives") {
  const Scratch scratch;
  const fs::path path = scratch / "out" / "name" / "0123abcd-s1";
  CHECK(find_run(path).kind == FoundRun::Kind::kAbsent);
  {
    const RunDirectory run = RunDirectory::create(path / "", "name: a\n", kManifest);
    CHECK(run.path() == path);
    CHECK(names_in(path) ==
          std::set<std::string>{".lock", "config.yaml", "manifest.json", "status.json"});
    CHECK(names_in(path.parent_path()).size() == 1);
    CHECK(read_bytes(path / "config.yaml") == "name: a\n");
    CHECK(json_of(path / "manifest.json") == kManifest);
    const Json status = json_of(path / "status.json");
    CHECK(status["status"] == "running");
    CHECK(status["pid"] == ::getpid());
    CHECK(status["host"] == host_name());
    const FoundRun found = find_run(path);
    CHECK(found.kind == FoundRun::Kind::kRunning);
    CHECK(found.holder == "process " + std::to_string(::getpid()) + " on " + host_name());
  }
  CHECK(find_run(path).kind == FoundRun::Kind::kInterrupted);
  CHECK_THROWS_WITH(RunDirectory::create(path, "", kManifest),
                    path.string() + ": cannot be made: a run is there already");
  CHECK(read_bytes(path / "config.yaml") == "name: a\n");
}

TEST_CASE("status.json and the manifest tell how a run stands and how it ended") {
  const Scratch scratch;
  const fs::path path = scratch / "run";
  {
    RunDirectory run = RunDirectory::create(path, "", kManifest);
    run.running(40, {{"train/loss", 2.5}});
    CHECK(json_of(path / "status.json")["step"] == 40);
    CHECK(json_of(path / "status.json")["metrics"]["train/loss"] == 2.5);
    run.end({.state = RunState::kDiverged,
             .reason = "loss is not finite",
             .step = 41,
             .metrics = {{"train/loss", std::nan("")}}});
  }
  const Json status = json_of(path / "status.json");
  CHECK(status["status"] == "diverged");
  CHECK(status["reason"] == "loss is not finite");
  CHECK(status["metrics"]["train/loss"] == "NaN");
  CHECK_FALSE(status.contains("pid"));
  CHECK(json_of(path / "manifest.json")["status"] == "diverged");
  CHECK(json_of(path / "manifest.json")["end_utc"].get<std::string>().ends_with("Z"));
  const FoundRun found = find_run(path);
  CHECK(found.kind == FoundRun::Kind::kInterrupted);
  REQUIRE(found.status);
  CHECK(found.status->state == RunState::kDiverged);
  CHECK(found.status->step == 41);
  CHECK(std::isnan(found.status->metrics.at("train/loss")));
  RunDirectory::resume(path, WriterLock(path), kManifest).end({.state = RunState::kFinished});
  CHECK(find_run(path).kind == FoundRun::Kind::kFinished);
}

TEST_CASE("the lock that a process killed in its last calls has left on a finished run goes") {
  const Scratch scratch;
  RunDirectory::create(scratch / "run", "", kManifest).end({.state = RunState::kFinished});
  write_bytes(scratch / "run/.lock", "1 nowhere\n");
  CHECK(already_finished(scratch / "run", {}));
  CHECK_FALSE(fs::exists(scratch / "run/.lock"));
}

TEST_CASE("a run whose status is missing or damaged is an interrupted one") {
  const Scratch scratch;
  RunDirectory::create(scratch / "run", "", kManifest);
  for (const char* text : {"", "{", "[]", R"({"status": "odd"})", R"({"status": 3})", "\xff\xfe",
                           R"({"status":"finished","reason":"","step":"x","metrics":{}})"}) {
    INFO(text);
    write_bytes(scratch / "run/status.json", text);
    const FoundRun found = find_run(scratch / "run");
    CHECK(found.kind == FoundRun::Kind::kInterrupted);
    CHECK_FALSE(found.status);
  }
  CHECK_NOTHROW(RunDirectory::resume(scratch / "run", WriterLock(scratch / "run"), kManifest));
}

TEST_CASE("a run that cannot be made leaves nothing behind") {
  const Scratch scratch;
  write_bytes(scratch / "file", "x");
  CHECK_THROWS_WITH(RunDirectory::create(scratch / "file/a/run", "", kManifest),
                    (scratch / "file/a/run").string() +
                        ": cannot be made: Not a directory; choose another place");
  fs::create_directory(scratch / "full");
  write_bytes(scratch / "full/notes.txt", "x");
  CHECK_THROWS_WITH(RunDirectory::create(scratch / "full", "", kManifest),
                    StartsWith((scratch / "full").string() + ": cannot be made: ") &&
                        Contains("it holds notes.txt"));
  CHECK_THROWS_AS(find_run(scratch / "full"), RunError);
  CHECK_THROWS_AS(find_run(scratch / "file"), RunError);
  CHECK_THROWS_AS(RunDirectory::create(scratch / std::string(300, 'n') / "run", "", kManifest),
                  RunError);
  CHECK(names_in(scratch.path()) == std::set<std::string>{"file", "full"});
  CHECK(names_in(scratch / "full").size() == 1);

  fs::create_directory(scratch / "empty");
  CHECK_NOTHROW(RunDirectory::create(scratch / "empty", "", kManifest));
}

TEST_CASE("whatever call of making a run fails, there is the whole run or nothing") {
  const Scratch scratch;
  const fs::path top = scratch / "out", path = top / "name" / "run";
  with_fault_at_each_call(
      ENOSPC, [&] { fs::remove_all(top); },
      [&] {
        try {
          RunDirectory::create(path, "name: a\n", kManifest);
          return true;
        } catch (const RunError& error) {
          CHECK_THAT(error.what(), StartsWith(path.string() + ": cannot be made: ") &&
                                       Contains("No space left on device"));
          return false;
        }
      },
      [&](bool) {
        if (!fs::exists(top)) return;
        CHECK(names_in(path.parent_path()) == std::set<std::string>{"run"});
        CHECK(find_run(path).kind == FoundRun::Kind::kInterrupted);
        CHECK(find_run(path).status);
        CHECK(json_of(path / "manifest.json") == kManifest);
      });
}

TEST_CASE("whenever the maker of a run is killed, the next one makes or resumes it") {
  const Scratch scratch;
  const fs::path top = scratch / "out", path = top / "name" / "run";
  with_fault_at_each_call(
      0, [&] { fs::remove_all(top); },
      [&] { return survives([&] { RunDirectory::create(path, "name: a\n", kManifest); }); },
      [&](bool finished) {
        const FoundRun found = find_run(path);
        if (found.kind == FoundRun::Kind::kAbsent) {
          CHECK_FALSE(finished);
          RunDirectory::create(path, "name: a\n", kManifest);
        } else {
          CHECK(found.kind == FoundRun::Kind::kInterrupted);
          RunDirectory::resume(path, WriterLock(path), kManifest);
        }
        CHECK(names_in(path.parent_path()) == std::set<std::string>{"run"});
      });
}

TEST_CASE("two processes never write one run: the second is told who does") {
  const Scratch scratch;
  const fs::path path = scratch / "run";
  std::optional<RunDirectory> held;  // by the other process, whose copy of this is filled
  Other other([&] { held.emplace(RunDirectory::create(path, "", kManifest)); });
  const FoundRun found = find_run(path);
  CHECK(found.kind == FoundRun::Kind::kRunning);
  CHECK(found.holder == other.name());
  const std::string before = read_bytes(path / "status.json");
  CHECK_THROWS_WITH(RunDirectory::resume(path, WriterLock(path), kManifest),
                    StartsWith(path.string() + ": is being written by " + other.name()));
  CHECK_THROWS_WITH(RunDirectory::replace(path, WriterLock(path), "", kManifest),
                    Contains(other.name()));
  CHECK_THROWS_AS(RunDirectory::create(path, "", kManifest), RunError);
  CHECK(read_bytes(path / "status.json") == before);
  other.kill();
  CHECK(find_run(path).kind == FoundRun::Kind::kInterrupted);
  CHECK_NOTHROW(RunDirectory::resume(path, WriterLock(path), kManifest));
}

TEST_CASE("a run that fails on a failing storage keeps its first error") {
  const Scratch scratch;
  RunDirectory run = RunDirectory::create(scratch / "run", "", kManifest);
  with_fault_at_each_call(
      EIO, [] {},
      [&] {
        run.fail("the first error");
        return StorageFault::calls_left >= 0;  // no call failed
      },
      [&](bool whole) {
        if (whole) CHECK(json_of(scratch / "run/status.json")["reason"] == "the first error");
      });
}

TEST_CASE("a run whose log took too long to look at has not failed, and can go on") {
  const Scratch folder;
  const auto run = folder / "run";
  RunDirectory directory = RunDirectory::create(run, "", kManifest);
  directory.running(7);
  try {
    throw ChildUnfinished("log.h5: reading it took too long");
  } catch (const std::exception& error) {
    directory.fail(error.what());
  }
  CHECK(read_status(run)->state == RunState::kStopped);
  CHECK(read_status(run)->step == 7);
  CHECK(read_status(run)->reason == "log.h5: reading it took too long");
  const auto other = folder / "other";
  RunDirectory::create(other, "", kManifest).fail("another error, of which nobody knows more");
  CHECK(read_status(other)->state == RunState::kFailed);
}

TEST_CASE("a run that an exception takes away has failed, unless it had ended") {
  const Scratch scratch;
  const bool ended = GENERATE(false, true);
  const auto begin_and_throw = [&] {
    auto moved = RunDirectory::create(scratch / "run", "", kManifest);
    RunDirectory run = std::move(moved);
    if (ended) run.end({.state = RunState::kStopped, .reason = "asked to", .step = 3});
    throw std::runtime_error("no room for the model");
  };
  CHECK_THROWS_WITH(begin_and_throw(), "no room for the model");
  const auto status = json_of(scratch / "run/status.json");
  CHECK(status["status"] == (ended ? "stopped" : "failed"));
  CHECK(WriterLock::holder(scratch / "run") == std::nullopt);
}

TEST_CASE("a run that fails by an error of torch keeps its cause, not the frames behind it") {
  const Scratch scratch;
  RunDirectory run = RunDirectory::create(scratch / "run", "", kManifest);
  try {
    TORCH_CHECK(false, "the cause");
  } catch (const std::exception& error) {
    REQUIRE(std::string(error.what()).find("Exception raised from") != std::string::npos);
    run.fail(error.what());
  }
  CHECK(json_of(scratch / "run/status.json")["reason"] == "the cause");
}

TEST_CASE("who starts a run second takes nothing away from who was first") {
  const Scratch scratch;
  const fs::path path = scratch / "run";
  RunDirectory::create(path, "name: a\n", kManifest).running(2);
  for (const int64_t step : {1, 2})
    save_checkpoint(path, {.step = step, .trainer = Json::object()}, false, {.keep_last = 9});
  const ResumeFrom first{.named = path / "ckpt/step-00000001"};
  {
    std::optional<WriterLock> held;
    Other other([&] { held.emplace(path); });
    for (const ResumeFrom& from : {first, ResumeFrom{}, ResumeFrom{.never = true}})
      CHECK_THROWS_WITH(begin_run(path, "name: a\n", kManifest, "", from), Contains(other.name()));
  }
  CHECK(names_in(path / "ckpt") == std::set<std::string>{"last", "step-00000001", "step-00000002"});
  CHECK(begin_run(path, "name: a\n", kManifest, "", first).checkpoint->step == 1);
  CHECK(names_in(path / "ckpt") == std::set<std::string>{"last", "step-00000001"});

  // Finished between the look at it and the lock: there is nothing to begin.
  RunDirectory::resume(path, WriterLock(path), kManifest)
      .end({.state = RunState::kFinished, .step = 1, .metrics = {{"val/loss", 2.5}}});
  const std::string status = read_bytes(path / "status.json");
  CHECK_FALSE(begin_run(path, "name: a\n", kManifest, "", {}).directory);
  CHECK(read_bytes(path / "status.json") == status);
}

TEST_CASE("two processes never make one run at the same time") {
  const Scratch scratch;
  fs::create_directory(scratch / ".tmp-run");
  std::optional<WriterLock> held;
  Other other([&] { held.emplace(scratch / ".tmp-run"); });
  CHECK_THROWS_WITH(RunDirectory::create(scratch / "run", "", kManifest), Contains(other.name()));
  CHECK(fs::exists(scratch / ".tmp-run/.lock"));
  other.kill();
  CHECK_NOTHROW(RunDirectory::create(scratch / "run", "", kManifest));
  CHECK(names_in(scratch.path()) == std::set<std::string>{"run"});
}

TEST_CASE("resuming keeps what the run was, and clears what a killed process left") {
  const Scratch scratch;
  const fs::path path = scratch / "run";
  {
    RunDirectory run = RunDirectory::create(path, "name: a\n", {{"argv", {"first"}}});
    run.end({.state = RunState::kStopped, .reason = "SIGTERM", .step = 30});
  }
  fs::create_directories(path / "ckpt/.tmp-step-00000040");
  write_bytes(path / "ckpt/.tmp-step-00000040/model.safetensors", "half");
  write_bytes(path / ".tmp-1-2", "half");
  write_bytes(path / "metrics.jsonl", "{\"step\":1}\n");
  for (const char* again : {"second", "third"}) {
    RunDirectory::resume(path, WriterLock(path), {{"argv", {again}}});
  }
  CHECK(names_in(path) == std::set<std::string>{"ckpt", "config.yaml", "manifest.json",
                                                "metrics.jsonl", "status.json"});
  CHECK(names_in(path / "ckpt").empty());
  const Json manifest = json_of(path / "manifest.json");
  CHECK(manifest["argv"] == Json{"third"});
  REQUIRE(manifest["previous"].size() == 2);
  CHECK(manifest["previous"][0]["argv"] == Json{"first"});
  CHECK(manifest["previous"][0]["status"] == "stopped");
  CHECK(manifest["previous"][1]["argv"] == Json{"second"});
  CHECK_FALSE(manifest["previous"][1].contains("previous"));
  CHECK(find_run(path).status->step == 30);
  CHECK_THROWS_AS(RunDirectory::resume(scratch / "none", WriterLock(scratch / "none"), kManifest),
                  RunError);
}

TEST_CASE("what a run keeps of its data is written once, or when an older run goes on") {
  const Scratch scratch;
  RunDirectory::create(scratch / "run", "name: a\n", kManifest, "{\"shape\": 1}\n");
  CHECK(read_bytes(scratch / "run/data.json") == "{\"shape\": 1}\n");
  RunDirectory::resume(scratch / "run", WriterLock(scratch / "run"), kManifest, "{}\n");
  CHECK(read_bytes(scratch / "run/data.json") == "{\"shape\": 1}\n");
  fs::remove(scratch / "run/data.json");
  const auto begun = begin_run(scratch / "run", "name: a\n", kManifest, "{}\n", {.never = true});
  CHECK(read_bytes(scratch / "run/data.json") == "{}\n");
  RunDirectory::create(scratch / "old", "name: a\n", kManifest);
  RunDirectory::resume(scratch / "old", WriterLock(scratch / "old"), kManifest, "{}\n");
  CHECK(read_bytes(scratch / "old/data.json") == "{}\n");
}

TEST_CASE("a run that starts anew has nothing of the old one") {
  const Scratch scratch;
  const fs::path path = scratch / "run";
  RunDirectory::create(path, "name: a\n", kManifest);
  write_bytes(path / "metrics.jsonl", "{\"step\":1}\n");
  {
    const RunDirectory run = RunDirectory::replace(path, WriterLock(path), "name: b\n", kManifest);
    CHECK(names_in(path) ==
          std::set<std::string>{".lock", "config.yaml", "manifest.json", "status.json"});
    CHECK(find_run(path).kind == FoundRun::Kind::kRunning);
  }
  CHECK(read_bytes(path / "config.yaml") == "name: b\n");
  CHECK(names_in(scratch.path()) == std::set<std::string>{"run"});
}

TEST_CASE("a run is found by its directory, and a checkpoint by its directory or a link to it") {
  const Scratch scratch;
  const fs::path run = fs::canonical(scratch.path()) / "runs/name/0123abcd-s1";
  RunDirectory::create(run, "", kManifest);
  const fs::path step = run / "ckpt/step-00000100";
  fs::create_directories(step);
  fs::create_directory_symlink("step-00000100", run / "ckpt/last");
  for (const fs::path& path : {run, run / "", run / "ckpt" / ".."}) {
    CHECK(locate_run(path).run == run);
    CHECK(locate_run(path).checkpoint.empty());
  }
  for (const fs::path& path : {step, run / "ckpt/last", run / "ckpt/last/"}) {
    CHECK(locate_run(path).run == run);
    CHECK(locate_run(path).checkpoint == step);
  }
  const fs::path above = run.parent_path(), none = run / "none";
  CHECK_THROWS_WITH(locate_run(above),
                    above.string() + ": not a run: no config.yaml; it holds 0123abcd-s1/");
  CHECK_THROWS_WITH(locate_run(run / "ckpt"), Contains("it holds last/, step-00000100/"));
  CHECK_THROWS_WITH(locate_run(none), none.string() + ": not a run: No such file or directory");
  CHECK_THROWS_WITH(locate_run(run / "config.yaml"), Contains("not a run: it is a file"));
}

}  // namespace
}  // namespace headlab::test_run_files
