// CIFAR-10 (Krizhevsky 2009) in its binary version: files of records, each a label and the 32x32
// pixels of three channels. The test batch validates, as there is no other.
#include <fmt/format.h>

#include "experiments/data/folder_files.h"
#include "experiments/data/formats/cifar10_file.h"
#include "experiments/data/images/images.h"
#include "experiments/files/mapped_file.h"

namespace headlab {
namespace {

struct Cifar10Options : ImageOptions, ReadsFolder {
  FilePath path;
  // Of the training images.
  std::vector<double> mean{0.4914, 0.4822, 0.4465}, std{0.2470, 0.2435, 0.2616};

  void visit(Fields& f) override {
    f("path", path, "the folder of data_batch_1.bin to data_batch_5.bin and test_batch.bin");
    f("mean", mean, "of red, green and blue: taken from every pixel, of 0 to 1");
    f("std", std, "of red, green and blue: what the rest is divided by", above(0));
    visit_test(f);
  }
  std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder) const override {
    return files_of_names(folder, {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                   "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"});
  }
  void check(const Complain& complain) const override {
    if (path.written.empty()) complain("path", "is needed: the folder of the binary version");
    for (const auto& [field, values] : {std::pair("mean", &mean), {"std", &std}})
      if (std::ssize(*values) != kCifarChannels)
        complain(field, fmt::format("must be {} numbers, one a channel", kCifarChannels));
  }
  std::vector<PixelScale> scales() const {
    std::vector<PixelScale> scales;
    for (int64_t c = 0; c < kCifarChannels; ++c) scales.push_back({255, mean[c], std[c]});
    return scales;
  }
};

class Cifar10 : public ImageSource {
 public:
  using Options = Cifar10Options;

  explicit Cifar10(const Options& options) : ImageSource(kCifarSide, kCifarSide, options.scales()) {
    for (int number = 1; number <= 5; ++number)
      add_file(Split::kTrain, options.path.resolved / fmt::format("data_batch_{}.bin", number));
    add_file(Split::kValidation, options.path.resolved / "test_batch.bin");
  }

 private:
  void add_file(Split split, const std::filesystem::path& path) {
    const auto& file = *maps_.emplace_back(std::make_unique<MappedFile>(path));
    files_.push_back(path);
    for (const auto& image : parse_cifar10(file.text(), path.string()))
      add(split, image.pixels, image.label);
  }

  std::vector<std::unique_ptr<MappedFile>> maps_;
};

const RegisterData<Cifar10> cifar10_source("cifar10", "CIFAR-10 in its binary version");

}  // namespace
}  // namespace headlab
