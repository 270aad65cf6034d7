// Images and labels in two IDX files, as MNIST's are (LeCun et al. 1998), and Fashion-MNIST's and
// others made to take its place: one channel, ten classes.
#include <fmt/format.h>

#include "core/errors.h"
#include "experiments/data/formats/idx.h"
#include "experiments/data/images/images.h"

namespace headlab {
namespace {

struct MnistOptions : ImageOptions {
  FilePath images, labels, validation_images, validation_labels, test_images, test_labels;
  double mean = 0.1307, std = 0.3081;

  MnistOptions() : ImageOptions(TestPart::Own::kWord) {}
  void visit(Fields& f) override {
    f("images", images, "IDX file of bytes [N,height,width], plain or gzip");
    f("labels", labels, "IDX file of bytes [N], 0 to 9");
    f("validation_images", validation_images,
      "likewise, for validation (absent: every fifth of `images`, i mod 5 = 4)");
    f("validation_labels", validation_labels, "their labels");
    f("test_images", test_images, "likewise, for split test (default: none)");
    f("test_labels", test_labels, "their labels");
    visit_test(f, "test_images");
    f("mean", mean, "taken from every pixel, of 0 to 1");
    f("std", std, "what the rest is divided by", above(0));
  }
  void check(const Complain& complain) const override {
    if (images.written.empty()) complain("images", "is needed: an IDX file");
    if (labels.written.empty()) complain("labels", "is needed: an IDX file");
    const auto check_pair = [&](const std::string& part, const FilePath& some,
                                const FilePath& their_labels) {
      if (some.written.empty() != their_labels.written.empty())
        complain(part + (some.written.empty() ? "_images" : "_labels"),
                 "is needed: images and labels for " + part + " come together");
    };
    check_pair("validation", validation_images, validation_labels);
    check_pair("test", test_images, test_labels);
  }
};

struct LabelledImages {
  IdxArray images, labels;
};

LabelledImages read_images(const FilePath& images, const FilePath& labels) {
  LabelledImages read{read_idx(images.resolved, 3), read_idx(labels.resolved, 1)};
  const auto name = labels.resolved.string();
  if (read.labels.sizes[0] != read.images.sizes[0])
    throw DataError(fmt::format("{}: holds {} labels, but {} holds {} images", name,
                                read.labels.sizes[0], images.resolved.string(),
                                read.images.sizes[0]));
  for (int64_t n = 0; n < read.labels.sizes[0]; ++n) check_label(read.labels.values[n], n, name);
  return read;
}

class Mnist : public ImageSource {
 public:
  using Options = MnistOptions;

  explicit Mnist(const Options& options)
      : Mnist(options, read_images(options.images, options.labels)) {}

 private:
  Mnist(const Options& options, LabelledImages read)
      : ImageSource(read.images.sizes[1], read.images.sizes[2],
                    {{.most = 255, .mean = options.mean, .std = options.std}}),
        read_(std::move(read)) {
    files_ = {options.images.resolved, options.labels.resolved};
    if (options.validation_images.written.empty()) {
      if (read_.labels.sizes[0] < 5)
        throw DataError(
            fmt::format("{}: holds {} images; every fifth validates, so that there "
                        "must be five",
                        files_[0].string(), read_.labels.sizes[0]));
      add_with_fifths(read_.images.values.data(), read_.labels.values);
    } else {
      add_all(Split::kTrain, read_);
      read_part(Split::kValidation, validation_, options.validation_images,
                options.validation_labels);
    }
    if (!options.test_images.written.empty())
      read_part(Split::kTest, test_, options.test_images, options.test_labels);
  }

  void read_part(Split split, LabelledImages& part, const FilePath& images,
                 const FilePath& labels) {
    part = read_images(images, labels);
    files_.push_back(images.resolved);
    files_.push_back(labels.resolved);
    const auto &sizes = read_.images.sizes, &others = part.images.sizes;
    if (others[1] != sizes[1] || others[2] != sizes[2])
      throw DataError(fmt::format("{}: images are {}x{}, but those of {} are {}x{}",
                                  images.resolved.string(), others[1], others[2],
                                  files_[0].string(), sizes[1], sizes[2]));
    add_all(split, part);
  }

  void add_all(Split split, const LabelledImages& read) {
    const uint8_t* pixel = read.images.values.data();
    for (const uint8_t label : read.labels.values) add(split, pixel, label), pixel += pixels();
  }

  LabelledImages read_, validation_, test_;
};

const RegisterData<Mnist> mnist_source("mnist", "images and labels in IDX files, as MNIST's are");

}  // namespace
}  // namespace headlab
