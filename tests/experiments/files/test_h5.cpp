// The HDF5 wrapper: what is written reads back, what must not be done is refused, errors say where.
#include <cmath>
#include <limits>
#include <numeric>

#include "core/errors.h"
#include "experiments/files/h5.h"
#include "tests/catch.h"
#include "tests/log_testing.h"

namespace headlab::test_h5 {
namespace {

using Catch::Contains;

TEST_CASE("attributes of each type read back and can be replaced") {
  const Scratch folder;
  {
    H5File file = H5File::create(folder / "a.h5");
    H5Group root = file.root();
    root.set_text("name", "first");
    root.set_text("name", "g\xc3\xbcnther\nand a second line");
    root.set_text("empty", "");
    root.set_number<uint16_t>("small", 65535);
    root.set_number("fraction", 0.1);
    root.set_numbers<int64_t>("many", std::vector<int64_t>{1, 2, 3});
    for (int i = 0; i < 20; ++i) root.set_number<int32_t>("n" + std::to_string(i), i);
    root.set_text("long", std::string(200000, 'x'));
    file.close();
  }
  const H5File file = H5File::open(folder / "a.h5");
  const H5Group root = file.root();
  CHECK(root.text("name") == "g\xc3\xbcnther\nand a second line");
  CHECK(root.text("empty").empty());
  CHECK(root.number("small") == 65535);
  CHECK(root.number("fraction") == 0.1);
  CHECK(root.number("n19") == 19);
  CHECK(root.text("long").size() == 200000);
  CHECK(!root.has_attribute("absent"));
  CHECK_THROWS_WITH(root.text("absent"), Contains("a.h5: /: has no attribute absent"));
  CHECK_THROWS_WITH(root.text("small"), Contains("is not a text"));
  CHECK_THROWS_WITH(root.number("name"), Contains("is not a number"));
  CHECK_THROWS_WITH(root.number("many"), Contains("is not a number"));
}

TEST_CASE("a text with a zero byte is refused rather than cut") {
  const Scratch folder;
  H5File file = H5File::create(folder / "a.h5");
  H5Group root = file.root();
  CHECK_THROWS_AS(root.set_text("name", std::string("a\0b", 3)), RunError);
  CHECK(!root.has_attribute("name"));
}

TEST_CASE("groups and datasets are listed in order of creation") {
  const Scratch folder;
  H5File file = H5File::create(folder / "a.h5");
  H5Group root = file.root();
  for (const char* name : {"zeta", "alpha/inner", "middle"}) root.make_group(name);
  root.make_dataset("beta", {H5Type::kF32, {2}});
  CHECK(root.names() == std::vector<std::string>{"zeta", "alpha", "middle", "beta"});
  CHECK(root.has_group("alpha/inner"));
  CHECK(!root.has_group("alpha/outer"));
  CHECK(!root.has_group("beta"));
  CHECK(root.has_dataset("beta"));
  CHECK(root.group("alpha/inner").path() == "/alpha/inner");
  root.remove("beta");
  CHECK(!root.has_dataset("beta"));
}

TEST_CASE("rows are appended, overwritten in place, cut off, and missing ones are filled") {
  const Scratch folder;
  H5File file = H5File::create(folder / "a.h5");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  H5Dataset data = file.root().make_dataset("x", {H5Type::kF32, {0, 3}, {4, 3}, false, nan});
  CHECK(data.grows());
  data.append<float>(std::vector<float>{0, 1, 2, 3, 4, 5});
  data.append<float>(std::vector<float>{6, 7, 8});
  data.write_at<float>({1, 1}, {2, 2}, std::vector<float>{-1, -2, -3, -4});
  CHECK(data.read<float>() == std::vector<float>{0, 1, 2, 3, -1, -2, 6, -3, -4});
  CHECK(data.read_at<float>({2, 0}, {1, 2}) == std::vector<float>{6, -3});
  data.truncate(1);
  CHECK(data.rows() == 1);
  data.append<float>(std::vector<float>{9, 9, 9, 8, 8, 8});
  data.write_at<float>({1, 0}, {1, 1}, std::vector<float>{7});
  CHECK(data.read<float>() == std::vector<float>{0, 1, 2, 7, 9, 9, 8, 8, 8});
  CHECK_THROWS_AS(data.append<float>(std::vector<float>{1, 2}), std::logic_error);
  CHECK_THROWS_AS(data.write<float>(std::vector<float>{1, 2}), std::logic_error);
  CHECK_THROWS_AS(data.truncate(4), std::logic_error);
  CHECK_THROWS_AS(data.read_at<float>({2, 0}, {2, 3}), RunError);
}

TEST_CASE("texts of any length are written and read") {
  const Scratch folder;
  H5File file = H5File::create(folder / "a.h5");
  const std::vector<std::string> texts = {"", "\xe2\x82\xac", std::string(5000, 'y')};
  H5Dataset data = file.root().make_dataset("t", {H5Type::kText, {3}});
  data.write_text(texts);
  CHECK(data.read_text() == texts);
  CHECK(data.type() == H5Type::kText);
  CHECK_THROWS_AS(data.write_text({"one"}), std::logic_error);
}

TEST_CASE("once SWMR writing has started only appending and overwriting are left") {
  const Scratch folder;
  H5File file = H5File::create(folder / "a.h5");
  H5Group root = file.root();
  H5Dataset data = root.make_dataset("x", {H5Type::kI64, {0}, {16}});
  H5Dataset texts = root.make_dataset("t", {H5Type::kText, {1}});
  file.start_swmr();
  data.append<int64_t>(std::vector<int64_t>{1, 2, 3});
  data.write_at<int64_t>({0}, {1}, std::vector<int64_t>{5});
  file.flush();
  CHECK_THROWS_AS(root.make_dataset("y", {H5Type::kI64, {1}}), std::logic_error);
  CHECK_THROWS_AS(root.make_group("g"), std::logic_error);
  CHECK_THROWS_AS(root.remove("x"), std::logic_error);
  CHECK_THROWS_AS(root.set_text("a", "b"), std::logic_error);
  CHECK_THROWS_AS(data.set_number("a", 1.0), std::logic_error);
  CHECK_THROWS_AS(data.make_scale("x"), std::logic_error);
  CHECK_THROWS_AS(texts.write_text({"a"}), std::logic_error);
  CHECK_THROWS_AS(data.truncate(1), std::logic_error);
  CHECK(data.read<int64_t>() == std::vector<int64_t>{5, 2, 3});
}

TEST_CASE("an error names the file, the object and the innermost reason") {
  const Scratch folder;
  CHECK_THROWS_WITH(H5File::open(folder / "none.h5"),
                    Contains("none.h5: cannot be opened: No such file or directory"));
  CHECK_THROWS_WITH(H5File::create(folder / "none/a.h5"), Contains("No such file or directory"));
  H5File file = H5File::create(folder / "a.h5");
  H5Group group = file.root().make_group("g");
  CHECK_THROWS_WITH(group.dataset("x"), Contains("a.h5: /g: has no dataset x"));
  CHECK_THROWS_WITH(group.group("h/i"), Contains("a.h5: /g: has no group h"));
  group.make_dataset("x", {H5Type::kF32, {1}});
  CHECK_THROWS_WITH(group.make_dataset("x", {H5Type::kF32, {1}}),
                    Contains("a.h5: /g: cannot make dataset x"));
}

TEST_CASE("an attribute that cannot be written is named") {
  const Scratch folder;
  H5File::create(folder / "a.h5");
  CHECK_THROWS_WITH(H5File::open(folder / "a.h5").root().set_text("a", "b"),
                    Contains("a.h5: /: cannot write attribute a"));
}

TEST_CASE("the chunks of one row are checked, and no others") {
  const Scratch folder;
  const auto path = folder / "a.h5";
  {
    H5File file = H5File::create(path);
    H5Dataset data = file.root().make_dataset("x", {H5Type::kF64, {0, 5, 8}, {1, 2, 8}, true});
    std::vector<double> values(12 * 5 * 8);
    std::iota(values.begin(), values.end(), 1.0);
    data.append<double>(values);
    file.close();
  }
  std::string bytes = read_bytes(path);
  {
    const H5File file = H5File::open(path);
    CHECK(file.end() == bytes.size());
    for (hsize_t row = 0; row < 12; ++row) CHECK_NOTHROW(file.root().dataset("x").check_row(row));
  }
  haddr_t at = 0;  // where the last chunk of row 7 lies
  {
    const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
    const hid_t data = H5Dopen2(file, "x", H5P_DEFAULT);
    const hsize_t place[] = {7, 4, 0};
    unsigned filters = 0;
    hsize_t size = 0;
    REQUIRE(H5Dget_chunk_info_by_coord(data, place, &filters, &at, &size) >= 0);
    H5Dclose(data);
    H5Fclose(file);
  }
  bytes[at + 9] ^= 0x10;
  write_bytes(path, bytes);
  const H5File file = H5File::open(path);
  const H5Dataset data = file.root().dataset("x");
  for (hsize_t row = 0; row < 12; ++row) {
    if (row == 7)
      CHECK_THROWS_WITH(data.check_row(row), Contains("a.h5: /x: cannot read"));
    else
      CHECK_NOTHROW(data.check_row(row));
  }
}

// Every byte of a header lies in a checksum of HDF5's.
TEST_CASE("what a link leads to and does not open is damaged, not absent") {
  const Scratch folder;
  const auto path = folder / "a.h5";
  {
    H5File file = H5File::create(path);
    for (const char* name : {"first", "second"}) {
      H5Group group = file.root().make_group(name);
      for (const char* inner : {"x", "y"})
        group.make_dataset(inner, {H5Type::kI32, {2}}).write<int32_t>(std::vector<int32_t>{1, 2});
    }
    file.close();
  }
  const std::string whole = read_bytes(path);
  int headers = 0;
  for (size_t at = whole.find("OHDR"); at != std::string::npos; at = whole.find("OHDR", at + 1)) {
    std::string bytes = whole;
    bytes[at + 6] ^= 1;
    write_bytes(path, bytes);
    std::string said;
    try {
      const H5File file = H5File::open(path);
      for (const char* name : {"first/x", "first/y", "second/x", "second/y"})
        if (!file.root().has_dataset(name)) said = "absent";
    } catch (const RunError& error) {
      said = error.what();
    }
    INFO(at << ": " << said);
    ++headers;
    CHECK_THAT(said,
               Contains(path.string()) && (Contains("is damaged") || Contains("cannot be opened")));
    if (said.find("header cannot be read") != std::string::npos)
      CHECK_THAT(said, Contains("/first: is") || Contains("/second: is") || Contains("/x: is") ||
                           Contains("/y: is"));
  }
  CHECK(headers == 7);  // the root, two groups, four datasets
}

TEST_CASE("more values than the file can hold are not allocated") {
  const Scratch folder;
  H5File file = H5File::create(folder / "a.h5");
  H5Dataset data = file.root().make_dataset("x", {H5Type::kF64, {hsize_t{1} << 40}, {1024}});
  CHECK_THROWS_WITH(data.read<double>(), Contains("claims more values than a file of"));
  CHECK_THROWS_AS(element_count({hsize_t{1} << 40, hsize_t{1} << 40}), RunError);
}

}  // namespace
}  // namespace headlab::test_h5
