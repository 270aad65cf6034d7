// Sources whose examples are images with one class each: what mnist, cifar10 and digits share.
#pragma once

#include <array>
#include <map>

#include "experiments/data/epochs.h"
#include "experiments/data/formats/image_label.h"
#include "experiments/data/test_part.h"

namespace headlab {

struct ImageOptions : DataOptions, TestPartOption {
  using TestPartOption::TestPartOption;
  void visit(Fields& f) override { visit_test(f); }  // images have no context
};

// What a byte of a channel becomes in the model: (byte/most - mean) / std.
struct PixelScale {
  double most, mean, std;
};

class ImageSource : public FiniteSource {
 public:
  int64_t vocabulary() const final { return 0; }
  int64_t context() const final { return 0; }
  DataShape shape() const final;
  const Task& task() const final { return classification_task(); }
  int64_t examples(Split split) const final;

 protected:
  // One scale a channel.
  ImageSource(int64_t height, int64_t width, const std::vector<PixelScale>& scales);

  // An image of bytes [C,height,width], which lie there as long as the source.
  void add(Split split, const uint8_t* pixels, uint8_t label);
  // Images one behind the other, every fifth (i mod 5 = 4) for validation, the others for training.
  void add_with_fifths(const uint8_t* pixels, const std::vector<uint8_t>& labels);
  int64_t pixels() const { return channels() * height_ * width_; }

 private:
  struct Image {
    const uint8_t* pixels;
    uint8_t label;
  };

  int64_t channels() const { return std::ssize(values_); }
  Batch batch_of(Split split, const std::vector<int64_t>& numbers) const final;

  int64_t height_, width_;
  std::vector<std::array<float, 256>> values_;  // of every byte, in each channel
  std::map<Split, std::vector<Image>> splits_;
};

}  // namespace headlab
