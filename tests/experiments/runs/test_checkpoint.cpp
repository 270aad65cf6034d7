// Checkpoints: saving and loading, what stays, and what survives kills, faults and damage.

#include <limits>

#include "core/errors.h"
#include "experiments/files/sha256.h"
#include "experiments/runs/checkpoint.h"
#include "experiments/runs/run_files.h"
#include "tests/catch.h"
#include "tests/checkpoint_testing.h"
#include "tests/scratch.h"
#include "tests/storage_faults.h"
#include "tests/tensors_testing.h"

namespace headlab::test_checkpoint {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using Catch::Matchers::StartsWith;
using testing::load_checkpoint;
using testing::same;

// A run's directory that holds no more than its config.
struct Run : Scratch {
  Run() { write_bytes(*this / "config.yaml", "name: a\n"); }
  fs::path ckpt(const std::string& name = "") const { return path() / "ckpt" / name; }
};

// Small, and different at every step.
Checkpoint checkpoint_of(int64_t step) {
  const auto value = static_cast<double>(step);
  return {.step = step,
          .model = {{"a.weight", at::full({3, 5}, value)},
                    {"a.count", at::full({2}, step, at::kLong)},
                    {"empty", at::empty({0, 4})}},
          .optimizer = NamedTensors{{"a.weight.exp_avg", at::full({3, 5}, -value, at::kDouble)},
                                    {"a.weight.step", at::scalar_tensor(value)}},
          .trainer = {{"tokens", step * 64},
                      {"wall_s", 0.1 * value},
                      {"rng", {std::numeric_limits<uint64_t>::max(), 1}}}};
}

void check_is(const Checkpoint& got, int64_t step) {
  const Checkpoint want = checkpoint_of(step);
  CHECK(got.step == step);
  CHECK(same(got.model, want.model));
  REQUIRE(got.optimizer);
  CHECK(same(*got.optimizer, *want.optimizer));
  CHECK(got.trainer == want.trainer);
}

TEST_CASE("weights are read without the optimizer, which an untrained checkpoint lacks") {
  const Run run;
  save_checkpoint(run.path(), checkpoint_of(1), false);
  write_bytes(run.ckpt("step-00000001/optimizer.safetensors"), "damaged");
  const auto located = locate_run(run.path());
  const Checkpoint weights = load_located_weights(located);
  CHECK(same(weights.model, checkpoint_of(1).model));
  CHECK_FALSE(weights.optimizer);
  CHECK_THROWS_AS(load_located(located), RunError);

  Checkpoint untrained = checkpoint_of(2);
  untrained.optimizer.reset();
  save_checkpoint(run.path(), untrained, false);
  CHECK_FALSE(fs::exists(run.ckpt("last") / "optimizer.safetensors"));
  CHECK_FALSE(load_located(located).optimizer);
}

// The latest one, without any damage on the way.
int64_t latest_step(const fs::path& run) {
  std::string warning;
  const std::optional<Checkpoint> latest = load_latest(run, &warning);
  CHECK(warning.empty());
  if (!latest) return -1;
  check_is(*latest, latest->step);
  return latest->step;
}

void check_whole(const fs::path& link, const std::set<int64_t>& steps) {
  const int64_t step = load_checkpoint(link).step;
  CHECK(steps.contains(step));
  check_is(load_checkpoint(link), step);
}

std::string target(const fs::path& link) { return fs::read_symlink(link).string(); }

TEST_CASE("a checkpoint comes back as it was saved, by step, by link and as the latest") {
  const Run run;
  CHECK_FALSE(load_latest(run.path()));
  CHECK_THROWS_WITH(load_located({run.path(), {}}), Contains("has no checkpoint yet"));
  save_checkpoint(run.path(), checkpoint_of(500), true);
  save_checkpoint(run.path(), checkpoint_of(2000), false);
  CHECK(names_in(run.ckpt()) ==
        std::set<std::string>{"best", "last", "step-00000500", "step-00002000"});
  CHECK(names_in(run.ckpt("last")) ==
        std::set<std::string>{"model.safetensors", "optimizer.safetensors", "state.json"});
  check_is(load_checkpoint(run.ckpt("step-00000500")), 500);
  check_is(load_checkpoint(run.ckpt("best")), 500);
  check_is(load_checkpoint(run.ckpt("last")), 2000);
  CHECK(latest_step(run.path()) == 2000);
  check_is(load_located(locate_run(run.path())), 2000);
  check_is(load_located(locate_run(run.ckpt("best"))), 500);
  const auto state = nlohmann::json::parse(read_bytes(run.ckpt("last/state.json")));
  CHECK(state["schema_version"] == 1);
  CHECK(state["step"] == 2000);
  CHECK(state["trainer"] == checkpoint_of(2000).trainer);
  CHECK_THROWS_AS(load_checkpoint(run.ckpt("none")), RunError);
}

TEST_CASE("the newest checkpoints stay, and the best, and the one that was resumed from") {
  const Run run;
  for (int64_t step = 1; step <= 6; ++step) {
    save_checkpoint(run.path(), checkpoint_of(step), step == 2,
                    {.keep_last = 2, .keep_best = true, .resumed_from = 3});
  }
  CHECK(names_in(run.ckpt()) == std::set<std::string>{"best", "last", "step-00000002",
                                                      "step-00000003", "step-00000005",
                                                      "step-00000006"});
  CHECK(target(run.ckpt("best")) == "step-00000002");
  save_checkpoint(run.path(), checkpoint_of(7), true, {.keep_last = 1});
  CHECK(names_in(run.ckpt()) == std::set<std::string>{"best", "last", "step-00000007"});
  save_checkpoint(run.path(), checkpoint_of(8), false, {.keep_last = 1});
  CHECK(names_in(run.ckpt()) ==
        std::set<std::string>{"best", "last", "step-00000007", "step-00000008"});
}

TEST_CASE("without a best one to keep there is no link to it") {
  const Run run;
  for (const int64_t step : {1, 2}) {
    save_checkpoint(run.path(), checkpoint_of(step), true, {.keep_last = 1, .keep_best = false});
  }
  CHECK(names_in(run.ckpt()) == std::set<std::string>{"last", "step-00000002"});
}

TEST_CASE("a step that is saved again is replaced, and best if it was") {
  const Run run;
  save_checkpoint(run.path(), checkpoint_of(5), true);
  Checkpoint again = checkpoint_of(5);
  again.trainer["tokens"] = 7;
  save_checkpoint(run.path(), again, false);
  CHECK(load_checkpoint(run.ckpt("best")).trainer == again.trainer);
  CHECK(names_in(run.ckpt()) == std::set<std::string>{"best", "last", "step-00000005"});
  rewind_checkpoints(run.path(), 5);
  CHECK(target(run.ckpt("best")) == "step-00000005");
}

TEST_CASE("going on from an earlier checkpoint forgets the later ones, best and last too") {
  const Run run;
  const RetentionOptions all{.keep_last = 10};
  for (int64_t step = 1; step <= 5; ++step) {
    save_checkpoint(run.path(), checkpoint_of(step), step == 2 || step == 5, all);
  }
  rewind_checkpoints(run.path(), 3);
  CHECK(names_in(run.ckpt()) ==
        std::set<std::string>{"best", "last", "step-00000001", "step-00000002", "step-00000003"});
  CHECK(target(run.ckpt("last")) == "step-00000003");
  CHECK(target(run.ckpt("best")) == "step-00000002");
  rewind_checkpoints(run.path(), 1);
  CHECK(names_in(run.ckpt()) == std::set<std::string>{"last", "step-00000001"});
}

// Changes one file of the newest of two checkpoints; the older one must be used, the newer named.
void check_refused(const Run& run, const fs::path& file, const std::string& bytes) {
  const std::string whole = read_bytes(file);
  write_bytes(file, bytes);
  std::string warning;
  const std::optional<Checkpoint> latest = load_latest(run.path(), &warning);
  REQUIRE(latest);
  check_is(*latest, 1);
  CHECK_THAT(warning, StartsWith(file.string() + ": ") && Contains("step 1 is used"));
  CHECK_THROWS_AS(load_checkpoint(file.parent_path()), RunError);
  write_bytes(file, whole);
}

TEST_CASE("a checkpoint with any byte changed is refused by name and the one before it is used") {
  const Run run;
  save_checkpoint(run.path(), checkpoint_of(1), false);
  save_checkpoint(run.path(), checkpoint_of(2), false);
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    const fs::path file = run.ckpt("step-00000002") / name;
    const std::string whole = read_bytes(file);
    for (size_t i = 0; i < whole.size(); i += 5) {
      INFO(name << ", byte " << i);
      std::string flipped = whole;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << i % 8));
      check_refused(run, file, flipped);
    }
  }
  CHECK(latest_step(run.path()) == 2);
}

TEST_CASE("a checkpoint cut off anywhere, or grown, is refused by name") {
  const Run run;
  save_checkpoint(run.path(), checkpoint_of(1), false);
  Checkpoint large = checkpoint_of(2);
  large.model["large"] = at::zeros({64, 256});
  save_checkpoint(run.path(), large, false);
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    const fs::path file = run.ckpt("step-00000002") / name;
    const std::string whole = read_bytes(file);
    for (size_t size = 0; size < whole.size(); size += 1 + whole.size() / 24) {
      INFO(name << ", " << size << " bytes");
      check_refused(run, file, whole.substr(0, size));
    }
    check_refused(run, file, whole + '\n');
  }
}

TEST_CASE("a checkpoint that lacks a file is refused, and all of them damaged is an error") {
  const Run run;
  save_checkpoint(run.path(), checkpoint_of(1), false);
  save_checkpoint(run.path(), checkpoint_of(2), false);
  fs::remove(run.ckpt("step-00000002/optimizer.safetensors"));
  std::string warning;
  CHECK(load_latest(run.path(), &warning)->step == 1);
  CHECK_THAT(warning, Contains("step-00000002/optimizer.safetensors: cannot be opened"));
  write_bytes(run.ckpt("step-00000001/state.json"), "{}");
  CHECK_THROWS_WITH(load_latest(run.path()),
                    Contains("step-00000002") && Contains("step-00000001/state.json: is damaged"));
  CHECK_THROWS_AS(load_located(locate_run(run.path())), RunError);
}

TEST_CASE("a state of another schema is refused even though it is whole") {
  const Run run;
  save_checkpoint(run.path(), checkpoint_of(1), false);
  const fs::path file = run.ckpt("step-00000001/state.json");
  std::string text = read_bytes(file);
  text.replace(text.find("\"schema_version\": 1"), 19, "\"schema_version\": 9");
  const size_t digits = text.size() - 64 - 4;  // before `"`, newline, `}`, newline
  text.replace(digits, 64, sha256(text.substr(0, digits)));
  write_bytes(file, text);
  CHECK_THROWS_WITH(load_checkpoint(run.ckpt("step-00000001")),
                    file.string() + ": has schema version 9, this program reads 1");
}

TEST_CASE("everything is on the disk before it gets its name, and the name before the link to it") {
  const Run run;
  save_checkpoint(run.path(), checkpoint_of(1), false);
  std::vector<std::string> calls;
  StorageFault::trace = &calls;
  save_checkpoint(run.path(), checkpoint_of(2), true);
  StorageFault::trace = nullptr;
  for (std::string& call : calls) {  // the names of files in the making
    if (call.starts_with("fsync .tmp-") && !call.ends_with("step-00000002")) call = "fsync file";
  }
  const std::vector<std::string> expected = {"fsync file",
                                             "rename model.safetensors",
                                             "fsync .tmp-step-00000002",
                                             "fsync file",
                                             "rename optimizer.safetensors",
                                             "fsync .tmp-step-00000002",
                                             "fsync file",
                                             "rename state.json",
                                             "fsync .tmp-step-00000002",
                                             "rename step-00000002",
                                             "fsync ckpt",
                                             "rename last",
                                             "rename best",
                                             "fsync ckpt"};
  CHECK(calls == expected);
}

TEST_CASE("a save killed at any call leaves the checkpoint before it or the new one, whole") {
  const Run run;
  const RetentionOptions one{.keep_last = 1};
  with_fault_at_each_call(
      0,
      [&] {
        fs::remove_all(run.ckpt());
        save_checkpoint(run.path(), checkpoint_of(1), true, one);
        save_checkpoint(run.path(), checkpoint_of(2), false, one);
      },
      [&] { return survives([&] { save_checkpoint(run.path(), checkpoint_of(3), true, one); }); },
      [&](bool finished) {
        const int64_t latest = latest_step(run.path());
        CHECK((latest == 3 || (latest == 2 && !finished)));
        check_whole(run.ckpt("last"), {2, latest});
        check_whole(run.ckpt("best"), {1, latest});
        // The next process goes on from there.
        RunDirectory::resume(run.path(), WriterLock(run.path()), {});
        rewind_checkpoints(run.path(), latest);
        CHECK(load_checkpoint(run.ckpt("best")).step == (latest == 3 ? 3 : 1));
        save_checkpoint(run.path(), checkpoint_of(latest + 1), false, one);
        CHECK(latest_step(run.path()) == latest + 1);
        for (const std::string& name : names_in(run.ckpt())) CHECK_FALSE(name.starts_with(".tmp"));
      });
}

TEST_CASE("saving a step again, killed at any call, leaves one of the two whole") {
  const Run run;
  const auto saved = [&](int64_t tokens) {
    Checkpoint checkpoint = checkpoint_of(2);
    checkpoint.trainer["tokens"] = tokens;
    return checkpoint;
  };
  with_fault_at_each_call(
      0,
      [&] {
        fs::remove_all(run.ckpt());
        save_checkpoint(run.path(), saved(1), true);
      },
      [&] { return survives([&] { save_checkpoint(run.path(), saved(2), false); }); },
      [&](bool finished) {
        const Checkpoint latest = load_checkpoint(run.ckpt("last"));
        const int64_t tokens = latest.trainer["tokens"];
        CHECK((tokens == 2 || (tokens == 1 && !finished)));
      });
}

TEST_CASE("a storage that refuses any call is an error with the reason, or does no harm") {
  const Run run;
  const RetentionOptions one{.keep_last = 1};
  for (const int error : {ENOSPC, EIO}) {
    with_fault_at_each_call(
        error,
        [&] {
          fs::remove_all(run.ckpt());
          save_checkpoint(run.path(), checkpoint_of(1), true, one);
          save_checkpoint(run.path(), checkpoint_of(2), false, one);
        },
        [&] {
          try {
            save_checkpoint(run.path(), checkpoint_of(3), true, one);
            return true;
          } catch (const RunError& refused) {
            CHECK_THAT(refused.what(), StartsWith(run.ckpt().parent_path().string()) &&
                                           Contains(std::strerror(error)));
            return false;
          }
        },
        [&](bool finished) {
          const int64_t latest = latest_step(run.path());
          CHECK((latest == 3 || (latest == 2 && !finished)));
          check_whole(run.ckpt("last"), {finished ? 3 : 2, latest});
          check_whole(run.ckpt("best"), {finished ? 3 : 1, latest});
          save_checkpoint(run.path(), checkpoint_of(3), true, one);
          CHECK(target(run.ckpt("last")) == "step-00000003");
          CHECK(target(run.ckpt("best")) == "step-00000003");
          CHECK(latest_step(run.path()) == 3);
        });
  }
}

TEST_CASE("a checkpoint that cannot be written says where and why") {
  const Scratch scratch;
  write_bytes(scratch / "ckpt", "a file");
  CHECK_THROWS_WITH(save_checkpoint(scratch.path(), checkpoint_of(1), false),
                    StartsWith((scratch / "ckpt").string()) && Contains("cannot be written: "));
  CHECK_THROWS_AS(save_checkpoint(scratch / "none", checkpoint_of(1), false), RunError);
}

}  // namespace
}  // namespace headlab::test_checkpoint
