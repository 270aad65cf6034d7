#include "experiments/logs/log_row.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "core/errors.h"

namespace headlab {
namespace {

constexpr double kSlack = 1e-6;  // rounding may carry a weight so far out of [0, 1]

}  // namespace

LogRowShape::LogRowShape(const LogGroup& group)
    : path_("/" + group.path), missing_(group.row_bytes()) {
  size_t begin = 0;
  for (const LogColumn& column : group.columns) {
    const size_t bytes = group.row_bytes(column);
    const bool counts = column.about.counts, named = counts || column.type == H5Type::kF32;
    places_[column.about.name] = {begin, bytes / h5_size(column.type), named, counts};
    if (counts) {
      const std::vector<int64_t> none(bytes / sizeof(int64_t), kNoCount);
      std::memcpy(missing_.data() + begin, none.data(), bytes);
    } else if (named) {
      const std::vector<float> nans(bytes / sizeof(float), std::numeric_limits<float>::quiet_NaN());
      std::memcpy(missing_.data() + begin, nans.data(), bytes);
    }
    begin += bytes;
  }
}

void LogRowShape::put(std::vector<std::byte>& row, const std::string& name,
                      std::span<const double> values,
                      const std::function<bool(size_t)>& keep) const {
  const auto at = places_.find(name);
  if (at == places_.end() || !at->second.named) {
    throw std::invalid_argument(path_ + " has no variable " + name);
  }
  require_count(name, values.size(), at->second.count);
  for (size_t i = 0; i < values.size(); ++i) {
    if (keep && !keep(i)) continue;
    const auto store = [&](auto value) {
      std::memcpy(row.data() + at->second.begin + i * sizeof value, &value, sizeof value);
    };
    if (at->second.counts)
      store(std::isnan(values[i]) ? kNoCount : int64_t{std::llround(values[i])});
    else
      store(static_cast<float>(values[i]));
  }
}

void LogRowShape::require_count(const std::string& name, size_t given, size_t wanted) const {
  if (given == wanted) return;
  throw std::invalid_argument(
      fmt::format("{}/{}: {} values given, {} wanted", path_, name, given, wanted));
}

std::vector<uint16_t> pack_weights(const std::string& site, int64_t step, const LogMaps& maps,
                                   std::span<const float> weights) {
  std::vector<uint16_t> packed(weights.size(), kPackedNone);
  for (size_t i = 0; i < weights.size(); ++i) {
    const double weight = weights[i];
    if (std::isnan(weight)) continue;
    if (weight < -kSlack || weight > 1 + kSlack) {
      const size_t keys = maps.key.size(), queries = maps.query.size(), heads = maps.heads.size();
      const size_t row = i / keys / queries;  // (probe * layers + layer) * heads + head
      throw RunError(fmt::format(
          "/attention/{}: step {}: weight {} at layer {}, head {}, query {}, key {} is not in [0, "
          "1]: such maps cannot be packed",
          site, step, weight, maps.layers[row / heads % maps.layers.size()],
          maps.heads[row % heads], maps.query[i / keys % queries], maps.key[i % keys]));
    }
    packed[i] = static_cast<uint16_t>(std::lround(std::clamp(weight, 0.0, 1.0) * kPackedOne));
  }
  return packed;
}

}  // namespace headlab
