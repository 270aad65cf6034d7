// Images with a class each: splits and normalisation against the raw bytes, and what is said of
// files that do not fit.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/errors.h"
#include "experiments/data/formats/digits_file.h"
#include "experiments/data/formats/idx.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/images_testing.h"

namespace headlab::test_images {
namespace {

using namespace testing;

const fs::path kData = fs::path(build::kSourceDir) / "configs/data";
constexpr int64_t kRecord = 3073;

std::string data_error(const std::string& options, const fs::path& base) {
  return error_of<DataError>([&] { open(options, base); });
}
std::string config_error(const std::string& options) {
  return error_of<ConfigError>([&] { open(options); });
}

Batch whole(const DataSource& data, Split split) {
  return data.eval_batch(split, 0, data.examples(split));
}

// Whether the images are these bytes, (x/most - mean) / std in float32.
bool are_pixels(const Tensor& images, const Tensor& bytes, double most, double mean, double std) {
  return images.equal(((bytes.to(at::kDouble) / most - mean) / std).to(at::kFloat));
}

Tensor bytes_of(const std::vector<uint8_t>& values, at::IntArrayRef sizes) {
  return at::tensor(at::ArrayRef<uint8_t>(values)).view(sizes);
}

// Five training files and a test file of `records` each, in which byte n of record r is r + n, and
// the label r mod 10.
void write_cifar(const Folder& folder, int64_t records) {
  for (const char* name : {"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4",
                           "data_batch_5", "test_batch"}) {
    std::string bytes;
    for (int64_t r = 0; r < records; ++r) {
      auto record = counting(kRecord, 256, static_cast<int>(r));
      record[0] = static_cast<char>(r % 10);
      bytes += record;
    }
    folder.write(std::string(name) + ".bin", bytes);
  }
}

}  // namespace

TEST_CASE("every fifth image of MNIST validates, normalised as the file's bytes say", "[data]") {
  const auto data = open(
      "kind: mnist, images: mnist/t10k-images-idx3-ubyte.gz, "
      "labels: mnist/t10k-labels-idx1-ubyte.gz",
      kData);
  const auto shape = data->shape();
  CHECK(shape.classes == 10);
  CHECK(shape.channels == 1);
  CHECK((shape.height == 28 && shape.width == 28));
  CHECK((data->vocabulary() == 0 && data->context() == 0 && shape.context == 0));
  CHECK(data->epoch_examples() == 8000);
  CHECK(data->examples(Split::kTrain) == 8000);
  CHECK(data->examples(Split::kValidation) == 2000);
  CHECK(data->examples(Split::kTest) == 0);
  CHECK(data->files() == std::vector<fs::path>{kData / "mnist/t10k-images-idx3-ubyte.gz",
                                               kData / "mnist/t10k-labels-idx1-ubyte.gz"});
  const auto images = bytes_of(read_idx(data->files()[0], 3).values, {2000, 5, 1, 28, 28});
  const auto labels = bytes_of(read_idx(data->files()[1], 1).values, {2000, 5}).to(at::kLong);
  const auto validation = whole(*data, Split::kValidation);
  CHECK(validation.targets.equal(labels.select(1, 4)));
  CHECK(are_pixels(validation.image, images.select(1, 4), 255, 0.1307, 0.3081));
  const auto training = whole(*data, Split::kTrain);
  CHECK(training.targets.equal(labels.narrow(1, 0, 4).reshape({8000})));
  CHECK(are_pixels(training.image, images.narrow(1, 0, 4).reshape({8000, 1, 28, 28}), 255, 0.1307,
                   0.3081));
  CHECK_FALSE(validation.ids.defined());
}

TEST_CASE("an epoch of images is each of them once, with its label", "[data]") {
  Folder folder;
  write_images(folder, 40);
  const auto data =
      open("kind: mnist, images: images, labels: labels, mean: 0, std: 1", folder.path());
  REQUIRE(data->epoch_examples() == 32);
  const auto epoch = data->epoch_batch(7, 32, 32);
  std::set<int64_t> first;
  for (int64_t i = 0; i < 32; ++i) {
    const auto pixel = std::lround(epoch.image[i][0][0][0].item<double>() * 255);
    CHECK(epoch.targets[i].item<int64_t>() == pixel / 6 % 10);
    first.insert(pixel);
  }
  CHECK(first.size() == 32);
  CHECK(epoch.image.equal(
      at::cat({data->epoch_batch(7, 32, 16).image, data->epoch_batch(7, 48, 16).image})));
}

TEST_CASE("images and labels for validation may have files of their own", "[data]") {
  Folder folder;
  write_images(folder, 7);
  write_images(folder, 3, "other_");
  const std::string options =
      "kind: mnist, images: images, labels: labels, validation_images: other_images, "
      "validation_labels: other_labels, mean: 0.5, std: 0.25";
  const auto data = open(options, folder.path());
  CHECK(data->examples(Split::kTrain) == 7);
  CHECK(data->examples(Split::kValidation) == 3);
  CHECK(data->files().size() == 4);
  CHECK((data->shape().height == 2 && data->shape().width == 3));
  const auto batch = data->eval_batch(Split::kValidation, 1, 2);
  CHECK(are_pixels(batch.image, at::arange(6, 18).view({2, 1, 2, 3}), 255, 0.5, 0.25));
  CHECK(batch.targets.equal(at::tensor({1, 2}, at::kLong)));
  folder.write("other_images", idx_header({3, 3, 2}) + counting(18));
  CHECK(data_error(options, folder.path()) ==
        fmt::format("{0}/other_images: images are 3x2, but those of {0}/images are 2x3",
                    folder.path().string()));
}

TEST_CASE("images and labels that do not belong together are refused", "[data]") {
  Folder folder;
  const auto at = folder.path().string();
  const std::string options = "kind: mnist, images: images, labels: labels";
  write_images(folder, 12);
  folder.write("labels", idx_header({11}) + counting(11, 10));
  CHECK(data_error(options, folder.path()) ==
        fmt::format("{0}/labels: holds 11 labels, but {0}/images holds 12 images", at));
  folder.write("labels", idx_header({12}) + counting(12, 11));
  CHECK(data_error(options, folder.path()) ==
        at + "/labels: label 10 (from 0) is 10; labels are 0 to 9");
  write_images(folder, 4);
  CHECK(data_error(options, folder.path()) ==
        at + "/images: holds 4 images; every fifth validates, so that there must be five");
  fs::remove(folder.path() / "labels");
  CHECK(data_error(options, folder.path()) ==
        at + "/labels: cannot be opened: No such file or directory");
}

TEST_CASE("CIFAR-10's records give images of three channels, each normalised by its own",
          "[data]") {
  Folder folder;
  write_cifar(folder, 12);
  const auto data =
      open("kind: cifar10, path: ., mean: [0.1, 0.2, 0.3], std: [0.5, 0.6, 0.7]", folder.path());
  CHECK(data->examples(Split::kTrain) == 60);
  CHECK(data->examples(Split::kValidation) == 12);
  CHECK(data->files().size() == 6);
  CHECK(data->shape().channels == 3);
  const auto validation = whole(*data, Split::kValidation);
  CHECK(validation.image.sizes() == at::IntArrayRef({12, 3, 32, 32}));
  const std::vector<double> mean{0.1, 0.2, 0.3}, std{0.5, 0.6, 0.7};
  for (int64_t r = 0; r < 12; ++r) {
    CHECK(validation.targets[r].item<int64_t>() == r % 10);
    const auto bytes = (at::arange(1, kRecord) + r).remainder(256).view({3, 32, 32});
    for (int64_t c = 0; c < 3; ++c)
      CHECK(are_pixels(validation.image[r][c], bytes[c], 255, mean[c], std[c]));
  }
  CHECK(open("kind: cifar10, path: .", folder.path())->shape().classes == 10);
}

TEST_CASE("CIFAR-10 files that are cut, empty or mislabelled are refused", "[data]") {
  Folder folder;
  const auto at = folder.path().string();
  write_cifar(folder, 2);
  folder.write("data_batch_3.bin", counting(2 * kRecord - 1));
  CHECK(data_error("kind: cifar10, path: .", folder.path()) ==
        at + "/data_batch_3.bin: 6145 bytes are no whole number of records of 3073; it is "
             "truncated, or not the binary version");
  folder.write("data_batch_3.bin", "");
  CHECK(data_error("kind: cifar10, path: .", folder.path()) ==
        at + "/data_batch_3.bin: 0 bytes are no whole number of records of 3073; it is truncated, "
             "or not the binary version");
  folder.write("data_batch_3.bin", counting(kRecord) + counting(kRecord, 256, 10));
  CHECK(data_error("kind: cifar10, path: .", folder.path()) ==
        at + "/data_batch_3.bin: label 1 (from 0) is 10; labels are 0 to 9");
  fs::remove(folder.path() / "data_batch_3.bin");
  CHECK(data_error("kind: cifar10, path: .", folder.path()) ==
        at + "/data_batch_3.bin: cannot be opened: No such file or directory");
}

TEST_CASE("the digits lie in the program", "[data]") {
  const auto data = open("kind: digits");
  CHECK(data->examples(Split::kTrain) == 1438);
  CHECK(data->examples(Split::kValidation) == 359);
  CHECK(data->files().empty());
  CHECK((data->shape().height == 8 && data->shape().width == 8 && data->shape().channels == 1));
  const auto digits = read_digits();
  REQUIRE(digits.labels.size() == 1797);
  const auto images = bytes_of(digits.pixels, {1797, 1, 8, 8});
  const auto labels = bytes_of(digits.labels, {1797}).to(at::kLong);
  CHECK(at::bincount(labels).equal(  // as scikit-learn's load_digits() has them
      at::tensor({178, 182, 177, 183, 181, 182, 181, 179, 174, 180}, at::kLong)));
  CHECK(images.sum().item<int64_t>() == 561718);
  const auto validation = whole(*data, Split::kValidation);
  CHECK(validation.targets.equal(labels.slice(0, 4, 1797, 5)));
  CHECK(are_pixels(validation.image, images.slice(0, 4, 1797, 5), 16, 0, 1));
}

TEST_CASE("wrong options of images are named with their place", "[data]") {
  CHECK(config_error("kind: mnist") ==
        "f.yaml:1:7: data.images: is needed: an IDX file\n"
        "f.yaml:1:7: data.labels: is needed: an IDX file");
  CHECK(config_error("kind: mnist, images: a, labels: b, validation_images: c") ==
        "f.yaml:1:7: data.validation_labels: is needed: images and labels for validation come "
        "together");
  CHECK(config_error("kind: mnist, images: a, labels: b, std: 0") ==
        "f.yaml:1:48: data.std: must be above 0, is 0");
  CHECK(config_error("kind: cifar10") ==
        "f.yaml:1:7: data.path: is needed: the folder of the binary version");
  CHECK(config_error("kind: cifar10, path: a, mean: [0.5, 0.5]") ==
        "f.yaml:1:38: data.mean: must be 3 numbers, one a channel");
  CHECK(config_error("kind: digits, context: 8").find("data.context: unknown key") !=
        std::string::npos);
}

}  // namespace headlab::test_images
