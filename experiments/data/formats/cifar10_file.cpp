#include "experiments/data/formats/cifar10_file.h"

#include <fmt/format.h>

#include "core/errors.h"
#include "experiments/data/formats/image_label.h"

namespace headlab {

std::vector<CifarImage> parse_cifar10(std::string_view bytes, const std::string& name) {
  constexpr size_t kRecord = 1 + kCifarChannels * kCifarSide * kCifarSide;
  if (bytes.empty() || bytes.size() % kRecord != 0)
    throw DataError(
        fmt::format("{}: {} bytes are no whole number of records of {}; it is "
                    "truncated, or not the binary version",
                    name, bytes.size(), kRecord));
  std::vector<CifarImage> images;
  images.reserve(bytes.size() / kRecord);
  const auto* record = reinterpret_cast<const uint8_t*>(bytes.data());
  for (size_t at = 0; at < bytes.size(); at += kRecord, record += kRecord) {
    check_label(record[0], std::ssize(images), name);
    images.push_back({record + 1, record[0]});
  }
  return images;
}

}  // namespace headlab
