// A vision transformer from outside: every command that takes a run takes one of images too.
#include "tests/command_testing.h"

namespace headlab::testing::test_command_images {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

// One training for all cases of this file.
class ImageBench : public TrainedBench {
 public:
  static const ImageBench& instance() {
    static const ImageBench only;
    return only;
  }

 private:
  ImageBench() {
    run_ = train({"data=digits", "model={kind: vit, layers: 2, d_model: 16, heads: 2, patch: 4}"});
  }
};

TEST_CASE("a run of images is evaluated, ablated, pruned, analyzed and converted") {
  const ImageBench& bench = ImageBench::instance();
  const Json measured = bench.json({"eval"});
  CHECK(measured.at("examples") == 359);
  CHECK(measured.at("accuracy").is_number());
  CHECK(measured.at("data").empty());

  for (const char* mode : {"zero", "mean", "position_mean", "uniform"})
    CHECK(bench.json({"ablate", "--mode", mode, "--batches", "1"}).contains("mode"));

  const Json cut = bench.json({"prune", "--heads", "0:1", "--slice", "--out", "cut"});
  CHECK(cut.at("removed") == Json{"0:1"});
  const Outcome again = bench.headlab({"eval", "cut", "--json"});
  CHECK(Json::parse(again.out).at("examples") == 359);

  const Json report = bench.json({"analyze", "--batches", "1", "--stats", "all", "--maps", "2"});
  const Json& s = report.at("statistics");
  CHECK(s.at("entropy")[1][1].get<double>() > 0);
  const double distance = s.at("grid_distance")[0][0];  // of nearly uniform maps over 2x2 patches
  CHECK(distance == Approx(4 * (2 + std::sqrt(2.0)) / 5).epsilon(0.05));
  for (const char* of_tokens : {"rare_token", "induction_repeated", "sep_from_sep"})
    CHECK_FALSE(s.contains(of_tokens));
  CHECK(bench.headlab({"inspect", (fs::path(bench.run()) / "log.h5").string()}).code == 0);
  CHECK(bench.json({"convert", "--to", "collaborative", "--out", "other"}).is_object());
}

TEST_CASE("what images have not is refused with the reason") {
  const ImageBench& bench = ImageBench::instance();
  const auto said = [&](Arguments arguments, int code) {
    const Outcome outcome = bench.headlab(arguments);
    CHECK(outcome.code == code);
    return outcome.err;
  };
  CHECK_THAT(said({"eval", bench.run(), "--data", "tiny.yaml"}, 3),
             Contains("--data of kind 'char': the number of classes is 0, that of the model 10"));
  CHECK_THAT(said({"eval", bench.run(), "--text", "x"}, 2),
             Contains("of kind 'digits', have no text"));
  CHECK_THAT(said({"generate", bench.run(), "--prompt", "x"}, 2),
             Contains("the data kind 'digits' has no text"));
  CHECK_THAT(said({"run", "tiny.yaml", "model.kind=vit"}, 2),
             Contains("a vit reads images that have classes"));
  CHECK_THAT(said({"validate", "tiny.yaml", "data=digits", "model={kind: vit, patch: 3}"}, 2),
             Contains("model.patch: 3 does not divide the images, of 8 by 8 pixels"));
  CHECK_THAT(said({"validate", "tiny.yaml", "data=digits"}, 2), Contains("tokens"));
}

TEST_CASE("validate and describe tell of images") {
  const Bench bench;
  const Outcome outcome =
      bench.headlab({"validate", "tiny.yaml", "data=digits", "model={kind: vit, patch: 4}"});
  CHECK_THAT(outcome.out, Contains("10 classes, 1438 training and 359 validation examples"));
  const Outcome described = bench.headlab({"describe", "mnist"});
  CHECK_THAT(described.out, Contains("validation_images") && Contains("0.1307"));
}

}  // namespace
}  // namespace headlab::testing::test_command_images
