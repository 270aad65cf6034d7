// `headlab run` from outside: what it leaves on the disk, and that no way of stopping it changes
// where it ends.
#include <set>

#include "experiments/files/h5.h"
#include "tests/command_testing.h"
#include "tests/thread_names.h"

namespace headlab::testing::test_command_run {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

// Rows of metrics.jsonl without what depends on the clock.
std::vector<Json> timeless_metrics(const fs::path& run) {
  std::vector<Json> rows;
  for (const std::string& line : lines_of(read_bytes(run / "metrics.jsonl"))) {
    rows.push_back(Json::parse(line));
    rows.back().erase("wall_s");
    rows.back().erase("tokens_per_s");
  }
  return rows;
}

std::string weights(const fs::path& run) { return read_bytes(run / "ckpt/last/model.safetensors"); }

TEST_CASE("a run leaves its config and manifest and metrics and log and checkpoints") {
  const Bench bench;
  const fs::path run = bench.train();
  CHECK(run.parent_path() == fs::canonical(bench.path()) / "runs/tiny");
  CHECK(run.filename().string().size() == std::string("01234567-s7").size());
  CHECK(run.filename().string().ends_with("-s7"));
  auto names = names_in(run);
  names.erase("code.patch");  // of a program that was built with uncommitted changes
  CHECK(names == std::set<std::string>{"ckpt", "config.yaml", "data.json", "log.h5",
                                       "manifest.json", "metrics.jsonl", "status.json"});
  CHECK(names_in(run / "ckpt") ==
        std::set<std::string>{"best", "last", "step-00000004", "step-00000005"});
  for (const std::string name : {"last", "best", "step-00000004", "step-00000005"}) {
    INFO(name);
    CHECK(names_in(run / "ckpt" / name) ==
          std::set<std::string>{"model.safetensors", "optimizer.safetensors", "state.json"});
  }
  CHECK(fs::read_symlink(run / "ckpt/last") == "step-00000005");

  const Json status = json_of(run / "status.json");
  CHECK(status.at("status") == "finished");
  CHECK(status.at("step") == 5);
  CHECK(status.at("metrics").at("val/loss").get<double>() > 0);
  CHECK_FALSE(status.contains("pid"));

  const Json manifest = json_of(run / "manifest.json");
  CHECK(manifest.at("status") == "finished");
  CHECK(manifest.at("seeds").at("seed") == 7);
  CHECK(manifest.at("argv") == Json({kHeadlab, "run", "tiny.yaml"}));
  CHECK(manifest.at("data")[0].at("path") == (fs::canonical(bench.path()) / "text.txt").string());
  CHECK(manifest.at("data")[0].at("bytes") == fs::file_size(bench / "text.txt"));
  CHECK(manifest.at("end_utc").is_string());

  const auto rows = timeless_metrics(run);
  REQUIRE(rows.size() == 6);
  for (int64_t step = 0; step <= 5; ++step) {
    INFO(rows[step].dump());
    CHECK(rows[step].at("step") == step);
    CHECK(rows[step].at("tokens") == step * 4 * 8);
    CHECK(rows[step].contains("train/loss"));
    CHECK(rows[step].contains("grad_norm") == (step > 0));
    CHECK(rows[step].contains("val/loss") == (step == 2 || step == 4 || step == 5));
  }
  CHECK(rows[5].at("val/loss") == status.at("metrics").at("val/loss"));
}

TEST_CASE("the manifest counts the parameters and names those that train") {
  const Bench bench;
  const auto parameters = [&](const Arguments& overrides) {
    return json_of(bench.train(overrides) / "manifest.json").at("parameters");
  };
  const Json all = parameters({});
  CHECK(all.at("trained") == all.at("total"));
  const Json gates = parameters({"model.attention={kind: gated}", "train.gates_only=true"});
  CHECK(gates.at("names_of_trained") == Json({"blocks.0.attention.gate.log_alpha"}));
  CHECK(gates.at("trained").get<int64_t>() < gates.at("total").get<int64_t>());
}

TEST_CASE("the rows of step 0 are what the first update measures") {
  const Bench bench;
  const fs::path run =
      bench.train({"model.dropout=0.3", "train.label_smoothing=0.1", "train.accumulate=2"});
  const auto rows = timeless_metrics(run);
  CHECK(rows[0].at("train/loss") == rows[1].at("train/loss"));
  CHECK(rows[0].at("train/smoothed_loss") == rows[1].at("train/smoothed_loss"));
  CHECK(rows[0].at("train/smoothed_loss") != rows[0].at("train/loss"));
  const H5File log = H5File::open(run / "log.h5");
  const auto loss = log.root().dataset("scalars/train_loss").read<float>();
  CHECK(loss[0] == rows[0].at("train/loss").get<float>());
  CHECK(log.root().dataset("scalars/smoothed_loss").read<float>()[1] ==
        rows[1].at("train/smoothed_loss").get<float>());
}

TEST_CASE("a finished run says so and changes nothing unless it is to be trained anew") {
  const Bench bench;
  const Outcome first = bench.headlab({"run", "tiny.yaml"});
  const fs::path run = only_entry(bench / "runs/tiny");
  const auto files = snapshot(bench.path());
  const Outcome again = bench.headlab({"run", "tiny.yaml"});
  CHECK(again.code == 0);
  CHECK(again.out == first.out);
  CHECK_THAT(again.err, Contains("finished"));
  CHECK(lines_of(again.err).size() == 1);
  CHECK((snapshot(bench.path()) == files));

  const std::string trained = weights(run);
  CHECK(bench.headlab({"run", "tiny.yaml", "--resume", "never"}).code == 0);
  const auto anew = snapshot(bench.path());
  CHECK((anew != files));
  CHECK((weights(run) == trained));
  for (const auto& [name, bytes] : files) CHECK(anew.count(name));
  CHECK(anew.size() == files.size());
}

TEST_CASE("a checkpoint of the run can be named to go on from and none of another run") {
  const Bench bench;
  const fs::path run = bench.train();
  const std::string other = bench.train({"seed=8"}), trained = weights(run);
  const auto resume = [&](const std::string& from, const std::string& out = "runs") {
    return bench.headlab({"run", "tiny.yaml", "--out", out, "--resume", from});
  };
  const Outcome goes_on = resume((run / "ckpt/step-00000004").string());
  CHECK(goes_on.code == 0);
  CHECK_THAT(goes_on.err, Contains("goes on from step 4"));
  CHECK((weights(run) == trained));
  CHECK(timeless_metrics(run).size() == 6);

  const auto files = snapshot(bench.path());
  for (const std::string out : {"runs", "elsewhere"}) {
    INFO(out);
    check_refusal(resume(other, out), 2, {"--resume " + other, "other settings: seed was 8, is 7"});
    check_refusal(resume("no_such_run", out), 4, {"no_such_run", "not a run"});
  }
  CHECK((snapshot(bench.path()) == files));
}

TEST_CASE("training that diverges exits 5 and says so everywhere") {
  const Bench bench;
  for (const std::string statistics : {"log.stats_every=0", "log.stats_every=1"}) {
    INFO(statistics);
    const Outcome outcome = bench.headlab({"run", "tiny.yaml", "--json", "train.lr=1e30",
                                           "train.clip=0", statistics, "--out", statistics});
    CHECK(outcome.code == 5);
    if (outcome.code != 5) continue;
    const Json result = Json::parse(outcome.out);
    CHECK(result.at("status") == "diverged");
    CHECK_THAT(result.at("reason").get<std::string>(), Contains("not finite at step"));
    CHECK(result.at("train/loss") == "NaN");
    const fs::path run = result.at("run").get<std::string>();
    CHECK(json_of(run / "status.json").at("status") == "diverged");
    CHECK(timeless_metrics(run).back().at("train/loss") == "NaN");
  }
}

TEST_CASE("a run whose time is over exits 75 and goes on the next time") {
  const Bench bench;
  const Arguments arguments{"run", "tiny.yaml", "train.max_time=1e-9", "--json"};
  const Outcome outcome = bench.headlab(arguments);
  CHECK(outcome.code == 75);
  const Json first = Json::parse(outcome.out);
  CHECK(first.at("status") == "stopped");
  CHECK(first.at("step") == 1);
  const Json second = Json::parse(bench.headlab(arguments).out);
  CHECK(second.at("run") == first.at("run"));
  CHECK(second.at("step").get<int>() > 1);
}

TEST_CASE("a run says which statistics its log was begun without and goes on") {
  const Bench bench;
  const Arguments arguments{"run", "tiny.yaml", "train.max_time=1e-9", "log.stats_every=1",
                            "--json"};
  const Outcome first = bench.headlab(arguments);
  CHECK_THAT(first.err, !Contains("begun without"));
  const fs::path log = fs::path(Json::parse(first.out).at("run").get<std::string>()) / "log.h5";
  {
    H5File file = H5File::edit(log);
    H5Group heads = file.root().group("heads/self");
    for (const char* name : {"max_logit", "lse"}) heads.remove(name);
    file.close();
  }
  const Outcome second = bench.headlab(arguments);
  CHECK(second.code == 75);
  CHECK_THAT(second.err, Contains("log.h5 was begun without lse, max_logit"));
  const H5File file = H5File::open(log);
  const H5Group heads = file.root().group("heads/self");
  CHECK(heads.dataset("entropy").rows() == heads.dataset("step").rows());
  CHECK(heads.dataset("step").rows() == 3);  // steps 0, 1 and 2
  CHECK_FALSE(heads.has_dataset("lse"));
}

TEST_CASE("a run does not go on with a text that has changed") {
  const Bench bench;
  const Arguments arguments{"run", "tiny.yaml", "train.max_time=1e-9"};
  CHECK(bench.headlab(arguments).code == 75);
  std::string text = read_bytes(bench / "text.txt");
  std::swap(text[10], text[11]);
  write_bytes(bench / "text.txt", text);
  const Outcome outcome = bench.headlab(arguments);
  CHECK(outcome.code == 75);
  CHECK_THAT(outcome.err, Contains("text.txt was another") && !Contains("goes on from step"));
  CHECK(names_in(bench / "runs/tiny").size() == 2);
}

TEST_CASE("going on from a named checkpoint with a text that has changed takes nothing away") {
  const Bench bench;
  const fs::path run = bench.train();
  std::string text = read_bytes(bench / "text.txt");
  std::swap(text[10], text[11]);
  write_bytes(bench / "text.txt", text);
  const auto files = snapshot(bench.path());
  const Outcome outcome =
      bench.headlab({"run", "tiny.yaml", "--resume", (run / "ckpt/step-00000004").string()});
  check_refusal(outcome, 4, {"text.txt", "have changed"});
  CHECK((snapshot(bench.path()) == files));
}

// Long enough to be stopped in the middle; everything that a resumed run must take up again.
const Arguments kLong{"run",
                      "tiny.yaml",
                      "train.steps=800",
                      "train.checkpoint.every=100",
                      "train.eval_every=250",
                      "log.every=50",
                      "log.stats_every=250",
                      "log.attention.every=500",
                      "model.dropout=0.1"};

Arguments long_run(const std::string& out) {
  Arguments arguments = kLong;
  arguments.insert(arguments.end(), {"--out", out});
  return arguments;
}

// The step that the live line shows, 0 before there is one.
int64_t shown_step(const std::string& err) {
  const size_t at = err.rfind("step ");
  if (at == std::string::npos || err.find('/', at) == std::string::npos) return 0;
  return std::atoll(err.c_str() + at + 5);
}

// A long run that has passed its first checkpoint.
std::unique_ptr<Process> started(const Bench& bench, const Arguments& run) {
  auto process = std::make_unique<Process>(
      Invocation{run, bench.path(), {{"TERM", "xterm"}, {"NO_COLOR", "1"}}, /*terminal=*/true});
  process->wait_for([](const std::string& err) { return shown_step(err) > 100; });
  return process;
}

// Group of the log -> its number of records.
std::map<std::string, int64_t> log_records(const fs::path& run) {
  const Json log = Json::parse(headlab({"inspect", run.string(), "--json"}).out);
  CHECK(log.at("status") == "finished");
  std::map<std::string, int64_t> records;
  for (const Json& group : log.at("groups"))
    if (group.contains("records")) records[group.at("path")] = group.at("records");
  records.erase("/resumes");
  return records;
}

struct Stop {
  int signal, code;
  std::string status;
};

TEST_CASE("a run that a signal stops goes on to the weights it would have had") {
  const Bench bench;
  REQUIRE(bench.headlab(long_run("whole")).code == 0);
  const fs::path whole = only_entry(bench / "whole/tiny");
  for (const Stop& stop : {Stop{SIGINT, 130, "stopped"}, Stop{SIGTERM, 143, "stopped"},
                           Stop{SIGUSR1, 75, "stopped"}, Stop{SIGKILL, -SIGKILL, "running"}}) {
    const std::string out = "signal" + std::to_string(stop.signal);
    INFO(out);
    const auto process = started(bench, long_run(out));
    process->signal(stop.signal);
    const Outcome ended = process->end();
    CHECK(ended.code == stop.code);
    const fs::path run = only_entry(bench / out / "tiny");
    const Json status = json_of(run / "status.json");
    if (stop.signal == SIGINT)
      CHECK_THAT(ended.err, Contains("interrupted at step " + status.at("step").dump() +
                                     "; the same command goes on"));
    CHECK(status.at("status") == stop.status);
    CHECK(status.at("step").get<int64_t>() >= 100);
    CHECK(status.at("step").get<int64_t>() < 800);
    CHECK(fs::exists(run / "ckpt/last/state.json"));
    // The three that can be caught differ in their code alone.
    if (stop.signal == SIGTERM || stop.signal == SIGUSR1) continue;

    const Outcome rest = bench.headlab(long_run(out));
    CHECK(rest.code == 0);
    CHECK_THAT(rest.err, Contains("goes on from step "));
    CHECK((weights(run) == weights(whole)));
    CHECK(timeless_metrics(run) == timeless_metrics(whole));
    CHECK(log_records(run) == log_records(whole));
    CHECK(json_of(run / "manifest.json").at("previous").size() == 1);
  }
}

TEST_CASE(
    "a second signal of another kind ends a run at once, and it goes on from what was saved") {
  const Bench bench;
  // A step takes a second or more, so both signals arrive within one.
  const Arguments slow{"run",         "tiny.yaml",         "train.steps=4", "train.batch=60000",
                       "log.every=1", "train.eval_every=0"};
  Process process(
      Invocation{slow, bench.path(), {{"TERM", "xterm"}, {"NO_COLOR", "1"}}, /*terminal=*/true});
  process.wait_for([](const std::string& err) { return err.find("step 1/4") != err.npos; });
  process.signal(SIGSTOP);  // so that it does not stop at a step between the two
  process.signal(SIGTERM);
  process.signal(SIGINT);
  process.signal(SIGCONT);
  // Either may be handled second (the kernel may give them to two threads); where the first one
  // was obeyed, the run has stopped at a step, and saved.
  const int code = process.end().code;
  CHECK((code == 130 || code == 143));
  const fs::path run = only_entry(bench / "runs/tiny");
  CHECK(json_of(run / "status.json").at("status") == "running");
  CHECK_FALSE(fs::exists(run / "ckpt"));
}

TEST_CASE("whether the cores are busy is watched unless the user has chosen otherwise") {
  const Bench bench;
  const auto training = [&](const Arguments& environment, const Arguments& settings = {}) {
    Arguments arguments{"-u", "GOMP_SPINCOUNT", "-u", "OMP_WAIT_POLICY"};
    arguments.insert(arguments.end(), environment.begin(), environment.end());
    arguments.push_back(kHeadlab);
    const Arguments run = long_run("out" + std::to_string(environment.size() + settings.size()));
    arguments.insert(arguments.end(), run.begin(), run.end());
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    auto process =
        std::make_unique<Process>(Invocation{arguments, bench.path(), {}, false, "/usr/bin/env"});
    process->wait_for([](const std::string& err) { return err.find("threads") != err.npos; });
    return process;
  };
  const auto watches = [](const Process& process) {
    return std::ranges::count(thread_names(std::to_string(process.id())), "busy_cores") > 0;
  };
  const bool tells = fs::exists("/proc/self/schedstat");
  const auto watched = training({});
  while (tells && !watches(*watched)) {  // a thread takes its name when it first has a core
  }
  CHECK(watches(*watched) == tells);
  CHECK_FALSE(watches(*training({"OMP_WAIT_POLICY=passive"})));
  CHECK_FALSE(watches(*training({}, {"train.busy_cores=off", "seed=8"})));
}

TEST_CASE("a damaged state file is refused by its name, and without it the run goes on") {
  const Bench bench;
  const fs::path run = bench.train();
  const std::string deep(200000, '[');
  for (const fs::path file : {"status.json", "manifest.json"})
    for (const std::string& text :
         {deep + std::string(200000, ']'), std::string("[]"), std::string("{"),
          std::string(R"({"status": 7, "data": 7, "previous": {}})"), std::string("a directory")}) {
      INFO(file.string() + ": " + text.substr(0, 20));
      const auto whole = read_bytes(run / file);
      fs::remove(run / file);
      if (text == "a directory")
        fs::create_directory(run / file);
      else
        write_bytes(run / file, text);
      check_refusal(bench.headlab({"run", "tiny.yaml"}), 4,
                    {(run / file).string() + ": is damaged; move it away, and the run goes on"});
      fs::remove(run / file);
      CHECK(bench.headlab({"run", "tiny.yaml"}).code == 0);
      fs::remove(run / file);
      write_bytes(run / file, whole);
    }
}

TEST_CASE("a run that another process writes is refused and told by whom") {
  const Bench bench;
  auto endless = long_run("out");  // it must not end before the other one has begun
  std::replace(endless.begin(), endless.end(), std::string("train.steps=800"),
               std::string("train.steps=1000000"));
  const auto process = started(bench, endless);
  check_refusal(bench.headlab(endless), 4, {"is being written by process "});
  process->signal(SIGTERM);
  CHECK(process->end().code == 143);
}

TEST_CASE("the log of a run that was killed can be read and repaired and then goes on") {
  const Bench bench;
  const auto process = started(bench, long_run("out"));
  process->signal(SIGKILL);
  process->end();
  const std::string run = only_entry(bench / "out/tiny").string();
  const auto inspect = [&] { return Json::parse(headlab({"inspect", run, "--json"}).out); };
  const Json killed = inspect();
  CHECK(killed.at("status") == "running");
  CHECK(killed.at("needs_repair") == true);
  const Outcome repair = headlab({"repair", run});
  CHECK(repair.code == 0);
  CHECK_THAT(repair.out, Contains("log.h5: repaired"));
  const Json repaired = inspect();
  CHECK(repaired.at("status") == "stopped");
  CHECK(repaired.at("needs_repair") == false);
  CHECK(repaired.at("groups")[0].at("records") >= killed.at("groups")[0].at("records"));
  CHECK(bench.headlab(long_run("out")).code == 0);
  CHECK(inspect().at("status") == "finished");
}

}  // namespace
}  // namespace headlab::testing::test_command_run
