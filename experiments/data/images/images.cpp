#include "experiments/data/images/images.h"

#include "core/torch.h"

namespace headlab {

ImageSource::ImageSource(int64_t height, int64_t width, const std::vector<PixelScale>& scales)
    : height_(height), width_(width), values_(scales.size()) {
  for (size_t channel = 0; channel < scales.size(); ++channel)
    for (size_t byte = 0; byte < 256; ++byte) {
      const auto& [most, mean, std] = scales[channel];
      values_[channel][byte] = static_cast<float>((static_cast<double>(byte) / most - mean) / std);
    }
}

DataShape ImageSource::shape() const {
  return {.classes = kImageClasses, .channels = channels(), .height = height_, .width = width_};
}

int64_t ImageSource::examples(Split split) const {
  const auto found = splits_.find(split);
  return found == splits_.end() ? 0 : std::ssize(found->second);
}

void ImageSource::add(Split split, const uint8_t* pixels, uint8_t label) {
  splits_[split].push_back({pixels, label});
}

void ImageSource::add_with_fifths(const uint8_t* pixels, const std::vector<uint8_t>& labels) {
  const int64_t size = this->pixels();
  for (int64_t i = 0; i < std::ssize(labels); ++i)
    add(i % 5 == 4 ? Split::kValidation : Split::kTrain, pixels + i * size, labels[i]);
}

Batch ImageSource::batch_of(Split split, const std::vector<int64_t>& numbers) const {
  const int64_t B = std::ssize(numbers), of_channel = height_ * width_;
  Batch batch;
  batch.image = at::empty({B, channels(), height_, width_}, at::kFloat);
  batch.targets = at::empty({B}, at::kLong);
  auto* value = batch.image.data_ptr<float>();
  auto* target = batch.targets.data_ptr<int64_t>();
  for (const int64_t number : numbers) {
    const auto& [pixels, label] = splits_.at(split).at(number);
    const uint8_t* pixel = pixels;
    for (const auto& values : values_)
      for (int64_t i = 0; i < of_channel; ++i) *value++ = values[*pixel++];
    *target++ = label;
  }
  return batch;
}

}  // namespace headlab
