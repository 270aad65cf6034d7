// What a log survives: kill -9, a second writer, bytes that are not those written.
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

using Catch::Contains;

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

TEST_CASE("after kill -9 a repair recovers every row that was flushed, and the log goes on") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  std::mt19937 random(7);
  for (int round = 0; round < 5; ++round) {
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

// What opens a log, and what it says; "": nothing is wrong with it.
std::vector<std::string> refusals(const std::filesystem::path& path) {
  LogLayout layout = small_layout();
  std::vector<std::string> said;
  for (const auto& opened : std::vector<std::function<void()>>{
           [&] { inspect_log(path); }, [&] { repair_log(path); },
           [&] { drop_unlogged(path, layout.sites, layout.evals); },
           [&] { RunLog::resume(path, small_layout(), 29, 0).close(LogStatus::kStopped); }}) {
    try {
      opened();
      said.emplace_back();
    } catch (const RunError& error) {
      said.emplace_back(error.what());
    }
  }
  return said;
}

TEST_CASE("a part of a log that does not open is damage, by name, for all who open the log") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  std::string whole = finished_log(path);
  const bool killed = GENERATE(false, true);
  if (killed) {
    std::filesystem::remove(path);
    run_and_kill(path, 60);
    whole = read_bytes(path);
  }
  int headers = 0, named = 0, found = 0;
  for (const std::string mark : {"OHDR", "OCHK"}) {
    for (size_t at = whole.find(mark); at != std::string::npos; at = whole.find(mark, at + 1)) {
      if (killed && found++ % 4 != 0) continue;  // the same parts as in a log that was closed
      std::string bytes = whole;
      bytes[at + 6] ^= 1;
      write_bytes(path, bytes);
      const auto said = refusals(path);
      INFO(mark << " at " << at);
      ++headers;
      named += said[0].find("is damaged: its header cannot be read") != std::string::npos;
      for (const std::string& text : said) CHECK_THAT(text, Contains(path.string() + ": "));
      CHECK(read_bytes(path) == bytes);
      CHECK(names_in(folder.path()) == std::set<std::string>{"log.h5"});
    }
  }
  CHECK(headers > (killed ? 5 : 20));
  CHECK(named > (killed ? 3 : 15));
}

TEST_CASE("steps out of order are damage, zeros at the end, which a full disk leaves, are not") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  finished_log(path);
  const auto set_step = [&](hsize_t row, int64_t step) {
    H5File file = H5File::edit(path);
    file.root().dataset("scalars/step").write_at<int64_t>({row}, {1}, std::vector<int64_t>{step});
    file.close();
  };
  for (const int64_t wrong : {int64_t{0}, int64_t{-7}, int64_t{1} << 40}) {
    set_step(12, wrong);
    const std::string bytes = read_bytes(path);
    for (const std::string& said : refusals(path))
      CHECK_THAT(said, Contains("log.h5: /scalars/step: is damaged: row 1"));
    CHECK(read_bytes(path) == bytes);
    set_step(12, 12);
  }
  set_step(29, 0);
  CHECK(inspect_log(path)["groups"][0]["records"] == 29);
  CHECK(refusals(path) == std::vector<std::string>(4));
}

TEST_CASE("a log of many maps is opened, repaired and gone on with") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  LogLayout layout = small_layout();
  LogSite& site = layout.sites[0];
  site.layers = 12, site.statistics.clear();
  LogMaps& maps = *site.maps;
  maps.probes = 4;
  maps.layers.clear();
  for (int64_t layer = 0; layer < site.layers; ++layer) maps.layers.push_back(layer);
  maps.query_token = std::vector<int32_t>(12, 0), maps.key_token = std::vector<int32_t>(16, 1);
  maps.query_length = {3, 3, 3, 3}, maps.key_length = {4, 4, 4, 4};
  constexpr int64_t kSnapshots = 300;
  Child child([&](const Child::Say&) {
    RunLog log = RunLog::create(path, layout);
    const std::vector<float> weights(map_bytes(site) / 2, 0.25f);
    for (int64_t step = 0; step < kSnapshots; ++step) log.attention("self", step, weights);
    log.sync();
    _exit(0);
  });
  REQUIRE(child.wait() == 0);
  const auto records = [&] {
    const auto log = inspect_log(path);
    for (const auto& group : log["groups"])
      if (group["path"] == "/attention/self") return group["records"].get<int64_t>();
    return int64_t{-1};
  };
  CHECK(records() == kSnapshots);
  CHECK(repair_log(path).needed);
  CHECK(drop_unlogged(path, layout.sites, layout.evals).empty());
  RunLogOptions options;
  options.repaired = true;
  RunLog::resume(path, layout, kSnapshots - 3, 0, options).close(LogStatus::kStopped);
  CHECK(records() == kSnapshots - 2);
}

TEST_CASE("the last record's maps are checked before a log is gone on with, others when read") {
  const Scratch folder;
  const auto path = folder / "log.h5";
  {
    RunLog log = RunLog::create(path, small_layout());
    for (int64_t step = 0; step < 8; ++step)
      log.attention("self", step, std::vector<float>(kMapSize, 0.25f));
    log.close(LogStatus::kStopped);
  }
  const std::string whole = read_bytes(path);
  for (const bool last : {false, true}) {
    haddr_t at = 0;
    hsize_t size = 0;
    {
      const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
      const hid_t data = H5Dopen2(file, "/attention/self/weights", H5P_DEFAULT);
      const hsize_t place[] = {last ? hsize_t{7} : hsize_t{2}, 1, 1, 0, 0, 0};
      unsigned filters = 0;
      REQUIRE(H5Dget_chunk_info_by_coord(data, place, &filters, &at, &size) >= 0);
      H5Dclose(data);
      H5Fclose(file);
    }
    std::string bytes = whole;
    bytes[at + size - 6] ^= 0x20;
    write_bytes(path, bytes);
    if (last) {
      CHECK_THROWS_WITH(repair_log(path), Contains("log.h5: /attention/self/weights: cannot read"));
      CHECK_THROWS_WITH(RunLog::resume(path, small_layout(), 7, 0), Contains("/weights"));
      CHECK(read_bytes(path) == bytes);
    } else {
      CHECK_NOTHROW(repair_log(path));
      const H5File file = H5File::open(path);
      const H5Dataset data = file.root().dataset("attention/self/weights");
      CHECK_THROWS_WITH(data.read<uint16_t>(), Contains("/attention/self/weights: cannot read"));
    }
  }
}

TEST_CASE("a log that is being written is not repaired through a link either") {
  const Scratch folder;
  const auto path = folder / "log.h5", link = folder / "link.h5";
  int64_t heard = 0;
  Child child([&](const Child::Say& say) { log_for_ever(path, say, true); });
  while (child.hear(heard) && heard >= 0) {
  }
  std::filesystem::create_symlink(path, link);
  const std::string writer = "process " + std::to_string(child.process());
  CHECK_THROWS_WITH(repair_log(link), Contains("is being written by " + writer));
  CHECK_THAT(inspect_log(link)["writer"].get<std::string>(), Contains(writer));
}

TEST_CASE("a repair keeps what the log is beside its bytes, and takes its place at once") {
  const Scratch folder;
  std::filesystem::create_directory(folder / "kept");
  const auto path = folder / "kept/log.h5", link = folder / "log.h5";
  run_and_kill(path, 60);
  std::filesystem::permissions(path, std::filesystem::perms(0640));
  std::filesystem::create_symlink(path, link);
  const H5File reader = H5File::open_dead(path);  // of the log as it was
  const hsize_t rows = reader.root().dataset("scalars/step").rows();
  CHECK(repair_log(link).needed);
  CHECK(std::filesystem::is_symlink(link));
  CHECK(std::filesystem::status(path).permissions() == std::filesystem::perms(0640));
  CHECK(names_in(folder.path()) == std::set<std::string>{"kept", "log.h5"});
  CHECK(names_in(folder / "kept") == std::set<std::string>{"log.h5"});
  CHECK(reader.root().dataset("scalars/step").read<int64_t>().size() == rows);
  check_records(path);
}

namespace {

void require_answers(int rounds) {
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
  for (int round = 0; round < rounds; ++round) {
    std::string bytes = whole;
    for (int change = 0; change < 2; ++change) {
      size_t at = random() % bytes.size();
      while (bytes[at] == 0) at = random() % bytes.size();  // most of the file is empty
      bytes[at] = static_cast<char>(random() % 3 ? bytes[at] ^ (1 << random() % 8) : 0xff);
    }
    write_bytes(path, bytes);
    answers([&] { to_text(inspect_log(path)); });
    answers([&] { repair_log(path); });
    answers([&] { RunLog::resume(path, small_layout(), 20, 0).close(LogStatus::kStopped); });
  }
  CHECK(refused > 80 * rounds / 300);
}

}  // namespace

TEST_CASE("bytes that were changed are read or refused, never a crash") { require_answers(40); }

TEST_CASE("bytes that were changed in hundreds of ways are read or refused", "[.slow]") {
  require_answers(300);
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
