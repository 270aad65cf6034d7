// How rows, weights and texts lie in the file of a run log, and when they are there.
#include <cmath>
#include <limits>
#include <random>

#include "experiments/files/h5.h"
#include "experiments/logs/log_file.h"
#include "experiments/logs/log_row.h"
#include "experiments/logs/run_log.h"
#include "tests/catch.h"
#include "tests/log_testing.h"

namespace headlab::test_log_storage {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST_CASE("a record counts only when its key is written, after all of its values") {
  const Scratch folder;
  const LogGroup group = log_groups(small_layout())[0];
  H5File file = H5File::create(folder / "log.h5");
  H5Group root = file.root();
  make_log_group(root, group);
  LogTable table(root, group);
  const std::vector<std::byte> row(group.row_bytes());
  for (const int64_t step : {0, 1, 2}) table.add(step, row);
  table.write_rows();
  CHECK(root.dataset("scalars/train_loss").rows() == 3);
  CHECK(root.dataset("scalars/step").rows() == 0);
  CHECK(table.rows() == 0);
  CHECK(LogTable(root, group).rows() == 0);
  table.write_keys();
  CHECK(root.dataset("scalars/step").read<int64_t>() == std::vector<int64_t>{0, 1, 2});
  CHECK(table.rows() == 3);
  CHECK(table.last_key() == 2);
  CHECK(!table.waiting());
}

TEST_CASE("rows are committed every flush_every rows, or when the oldest has waited long enough") {
  const Scratch folder;
  const LogLayout layout = small_layout();
  RunLogOptions options;
  options.flush_every = 4;
  LogFile log(folder / "log.h5", log_groups(layout), options);
  log.create(layout);
  const std::vector<std::byte> scalars(log_groups(layout)[0].row_bytes());
  const std::vector<std::byte> evals(log_groups(layout)[1].row_bytes());
  CHECK(!log.deadline());
  const auto before = LogFile::Clock::now();
  log.add(0, 0, scalars);
  const auto after = LogFile::Clock::now();
  REQUIRE(log.deadline());
  CHECK(*log.deadline() >= before + std::chrono::seconds(5));
  CHECK(*log.deadline() <= after + std::chrono::seconds(5));
  const auto deadline = *log.deadline();
  log.add(0, 1, scalars);
  log.add(1, 1, evals);
  CHECK(*log.deadline() == deadline);
  CHECK(log.table(0).rows() == 0);
  log.add(0, 2, scalars);
  CHECK(log.table(0).rows() == 3);
  CHECK(log.table(1).rows() == 1);
  CHECK(!log.deadline());
  log.close("finished");
}

TEST_CASE("packed weights are exact to half a step, and keep 0, 1 and missing apart") {
  LogMaps maps = *small_layout().sites[0].maps;
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(0, 1);
  double worst = 0;
  for (int round = 0; round < 500; ++round) {
    std::vector<float> weights(kMapSize);
    for (float& weight : weights) weight = uniform(random);
    const auto packed = pack_weights("self", 0, maps, weights);
    for (size_t i = 0; i < weights.size(); ++i) {
      worst = std::max(worst, std::abs(packed[i] / 65534.0 - weights[i]));
    }
  }
  CHECK(worst <= 1.0 / 131068 + 1e-15);
  CHECK(worst > 0.9 / 131068);
  std::vector<float> ends(kMapSize, 0.0f);
  ends[1] = 1;
  ends[2] = kNaN;
  ends[3] = 1 + 5e-7f;
  ends[4] = -5e-7f;
  const auto packed = pack_weights("self", 0, maps, ends);
  CHECK(std::vector<uint16_t>(packed.begin(), packed.begin() + 5) ==
        std::vector<uint16_t>{0, 65534, 65535, 65534, 0});
}

TEST_CASE("statistics are not compressed, maps are, in chunks of one layer of one probe") {
  const Scratch folder;
  { RunLog::create(folder / "log.h5", small_layout()).close(LogStatus::kFinished); }
  const auto filters = [&](const char* name, hsize_t* chunk, int rank) {
    const hid_t file = H5Fopen((folder / "log.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
    const hid_t data = H5Dopen2(file, name, H5P_DEFAULT), made = H5Dget_create_plist(data);
    const int count = H5Pget_nfilters(made);
    H5Pget_chunk(made, rank, chunk);
    H5Pclose(made);
    H5Dclose(data);
    H5Fclose(file);
    return count;
  };
  H5Extent statistics(3), maps(6);
  CHECK(filters("/heads/self/entropy", statistics.data(), 3) == 0);
  CHECK(statistics[1] == 2);
  CHECK(statistics[2] == 3);
  CHECK(filters("/attention/self/weights", maps.data(), 6) == 3);
  CHECK(maps == H5Extent{1, 1, 1, 2, 3, 4});
}

TEST_CASE("texts of tokens are UTF-8 whatever their bytes are") {
  CHECK(readable_text("plain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82") ==
        "plain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82");
  CHECK(readable_text(std::string("a\0b", 3)) == "a<0x00>b");
  CHECK(readable_text("\xff\xc3") == "<0xFF><0xC3>");
  CHECK(readable_text("\xc0\xaf") == "<0xC0><0xAF>");            // overlong
  CHECK(readable_text("\xed\xa0\x80") == "<0xED><0xA0><0x80>");  // a surrogate
  CHECK(readable_text("\xf4\x90\x80\x80") == "<0xF4><0x90><0x80><0x80>");
  CHECK(readable_text("\xe2\x82").size() == 12);
}

}  // namespace
}  // namespace headlab::test_log_storage
