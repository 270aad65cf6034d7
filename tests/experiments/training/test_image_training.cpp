// Trainings of images: a vision transformer learns the digits, the same way each time, and its log
// says what it can of places that are no tokens.
#include <cmath>

#include "core/torch.h"
#include "experiments/files/h5.h"
#include "experiments/inference/evaluate.h"
#include "experiments/runs/open_run.h"
#include "experiments/training/log_images.h"
#include "experiments/training/train.h"
#include "experiments/training/training_state.h"
#include "tests/catch.h"
#include "tests/data_testing.h"

namespace headlab::test_image_training {
namespace {

using namespace testing;

Experiment experiment_of(const std::string& attention, int64_t steps, int64_t patch = 4) {
  Experiment experiment;
  read_config(experiment,
              parse_config("name: digits\n"
                           "data: digits\n"
                           "model: {kind: vit, layers: 2, d_model: 32, heads: 4, patch: " +
                               std::to_string(patch) + ", attention: " + attention +
                               "}\n"
                               "train: {steps: " +
                               std::to_string(steps) +
                               ", batch: 32, lr: 3.0e-3, warmup: 10}\n"
                               "log: {every: 2, stats_every: 2, stats: all, attention: {every: 2, "
                               "probes: 3}}\n",
                           "f.yaml"));
  return experiment;
}

std::shared_ptr<Model> trained(const Experiment& experiment) {
  const auto data = open_data(experiment.data);
  auto model = build_model(experiment, data->shape(), at::kCPU);
  TrainingState state;
  train_further(experiment, model, *data, {at::kCPU}, state, std::nullopt, nullptr);
  model->eval();
  return model;
}

}  // namespace

TEST_CASE("a vision transformer learns the digits in a few seconds, the same each time",
          "[whole_training]") {
  const auto experiment = experiment_of("mha", 200);
  const auto model = trained(experiment);
  const auto data = open_data(experiment.data);
  const auto measured = evaluate(*model, {data.get()}, {at::kCPU});
  CHECK(measured.examples == 359);
  CHECK(measured.tokens == 359);
  CHECK(data->task().derived().empty());   // of classes
  CHECK(measured.mean("accuracy") > 0.8);  // by chance: 0.1
  CHECK(measured.loss() < 0.7);            // by chance: 2.3
  const auto short_one = experiment_of("mha", 10);
  const auto once = trained(short_one), again = trained(short_one);
  for (const auto& item : again->named_parameters())
    REQUIRE(item.value().equal(once->named_parameters()[item.key()]));
}

TEST_CASE("a log of images has maps over all places, none of which has a token") {
  const Scratch folder;
  const auto experiment = experiment_of("mha", 2);
  const auto data = open_data(experiment.data);
  const auto model = build_model(experiment, data->shape(), at::kCPU);
  const auto path = folder / "run";
  auto directory = RunDirectory::create(path, "name: digits\n", {{"status", "running"}});
  directory.end(train(experiment, model, *data, {at::kCPU}, directory, {}).status);

  const H5File log = H5File::open(path / "log.h5");
  CHECK(log.root().dataset("attention/self/weights").extent() == H5Extent{2, 3, 2, 4, 5, 5});
  for (const std::string side : {"query_token", "key_token"})
    CHECK(log.root().dataset("attention/self/" + side).read<int32_t>() ==
          std::vector<int32_t>(3 * 5, -1));
  for (const float x : log.root().dataset("heads/self/induction").read<float>())
    CHECK(std::isnan(x));
  for (const float x : log.root().dataset("heads/self/entropy").read<float>())
    CHECK(x == Approx(std::log(5.0)).epsilon(0.01));
}

TEST_CASE("the log of a vision transformer has the images of its probes") {
  const Scratch folder;
  const auto experiment = experiment_of("mha", 2);
  const auto data = open_data(experiment.data);
  const auto model = build_model(experiment, data->shape(), at::kCPU);
  const auto path = folder / "run";
  auto directory = RunDirectory::create(path, "name: digits\n", {{"status", "running"}});
  directory.end(train(experiment, model, *data, {at::kCPU}, directory, {}).status);

  std::vector<uint8_t> expected;  // of examples 0, 119 and 239 of 359
  for (const int64_t n : {0, 119, 239}) {
    const auto x = data->eval_batch(Split::kValidation, n, 1).image;
    const auto bytes = ((x - x.min()) / (x.max() - x.min()) * 255).round().to(at::kByte);
    const auto flat = bytes.flatten().contiguous();
    expected.insert(expected.end(), flat.const_data_ptr<uint8_t>(),
                    flat.const_data_ptr<uint8_t>() + flat.numel());
  }
  const H5File log = H5File::open(path / "log.h5");
  const auto image = log.root().dataset("attention/self/image");
  CHECK(image.type() == H5Type::kU8);
  CHECK(image.extent() == H5Extent{3, 1, 8, 8});
  CHECK(image.read<uint8_t>() == expected);
}

TEST_CASE("an image has all the shades there are, whatever the model's scale") {
  const auto x = at::zeros({3, 3, 2, 4});
  x[0][0][0][1] = -1.0;  // red, upper left but one
  x[0][2][1][3] = 3.0;
  x[1].fill_(7);
  x[2][1] = at::tensor({0, 1, 2, 3, 4, 5, 6, 7}).view({2, 4}) * 1e-4;
  const auto logged = log_images(x, {.rows = 1, .columns = 2, .cls_tokens = 1, .patch = 2});
  CHECK(std::vector{logged.channels, logged.rows, logged.columns} == std::vector<int64_t>{3, 2, 4});
  CHECK(std::vector{logged.patch, logged.cls_tokens} == std::vector<int64_t>{2, 1});
  REQUIRE(logged.pixels.size() == 3 * 24);
  CHECK(logged.pixels[1] == 0);
  CHECK(logged.pixels[0] == 64);  // 255 / 4
  CHECK(logged.pixels[23] == 255);
  for (int n = 24; n < 48; ++n) CHECK(logged.pixels[n] == 0);
  for (int n = 0; n < 8; ++n) CHECK(logged.pixels[48 + 8 + n] == std::lround(255 * n / 7.0));
}

TEST_CASE("a patch that does not divide the images is named with the config's line") {
  const auto experiment = experiment_of("mha", 2, 3);
  const auto shape = open_data(experiment.data)->shape();
  CHECK(error_of<ConfigError>([&] { build_model(experiment, shape, at::kCPU); }) ==
        "f.yaml:3:61: model.patch: 3 does not divide the images, of 8 by 8 pixels");
}

}  // namespace headlab::test_image_training
