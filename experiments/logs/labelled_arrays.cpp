#include "experiments/logs/labelled_arrays.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace headlab {
namespace {

H5Type type_of(const LabelledArray& array) {
  if (!array.texts.empty()) return H5Type::kText;
  if (array.type) return *array.type;
  if (array.flags) return H5Type::kU8;
  return array.about.counts ? H5Type::kI64 : H5Type::kF64;
}

template <class T>
std::vector<T> whole_numbers(const std::vector<double>& values) {
  std::vector<T> numbers;
  numbers.reserve(values.size());
  for (const double value : values)
    numbers.push_back(static_cast<T>(std::isnan(value) ? kNoCount : std::llround(value)));
  return numbers;
}

void write_values(H5Dataset& data, const LabelledArray& array) {
  switch (type_of(array)) {
    case H5Type::kText:
      return data.write_text(array.texts);
    case H5Type::kU8:
      return data.write<uint8_t>(whole_numbers<uint8_t>(array.values));
    case H5Type::kI32:
      return data.write<int32_t>(whole_numbers<int32_t>(array.values));
    case H5Type::kI64:
      return data.write<int64_t>(whole_numbers<int64_t>(array.values));
    default:
      return data.write<double>(array.values);
  }
}

// What a reader must know of an element: which value stands for none, what flags mean.
void set_encoding(H5Dataset& data, const LabelledArray& array) {
  if (array.flags) {
    const uint8_t values[] = {0, 1};
    data.set_numbers<uint8_t>("flag_values", values);
    data.set_text("flag_meanings", "no yes");
  }
  const auto type = type_of(array);
  if (type == H5Type::kF64) data.set_number("_FillValue", std::numeric_limits<double>::quiet_NaN());
  // Named only where it is needed: readers give all that has one as floating-point numbers.
  if (type == H5Type::kI64 &&
      std::ranges::any_of(array.values, [](double value) { return std::isnan(value); }))
    data.set_number("_FillValue", kNoCount);
}

H5Dataset make_axis(H5Group& group, const LabelledAxis& axis, H5Type type) {
  auto scale = group.make_dataset(axis.about.name, {axis.labels.empty() ? type : H5Type::kText,
                                                    {static_cast<hsize_t>(axis.size)}});
  scale.make_scale(axis.about.name);
  describe(scale, axis.about);
  const auto places = axis.places();
  if (!axis.labels.empty())
    scale.write_text(axis.labels);
  else if (type == H5Type::kI32)
    scale.write<int32_t>(std::vector<int32_t>(places.begin(), places.end()));
  else
    scale.write<int64_t>(places);
  return scale;
}

void make_array(H5Group& group, const LabelledGroup& spec, const LabelledArray& array,
                const AxisScales& scales) {
  const auto extent = spec.extent(array.dims);
  const auto count = std::max(array.texts.size(), array.values.size());
  if (element_count(extent) != count)
    throw std::invalid_argument(fmt::format("{}/{}: {} values for {}", spec.path, array.about.name,
                                            count, fmt::join(extent, " x ")));
  H5Layout layout{type_of(array), extent};
  if (layout.type == H5Type::kF64) layout.fill = std::numeric_limits<double>::quiet_NaN();
  auto data = group.make_dataset(array.about.name, layout);
  describe(data, array.about);
  for (const auto& [name, value] : array.attributes) data.set_number(name, value);
  for (const auto& [name, text] : array.notes) data.set_text(name, text);
  for (const auto& [name, value] : array.count_attributes) data.set_number(name, value);
  attach_axes(data, array.dims, scales);
  set_encoding(data, array);
  write_values(data, array);
}

}  // namespace

std::vector<int64_t> LabelledAxis::places() const {
  if (!coordinates.empty()) return coordinates;
  std::vector<int64_t> counted(size);
  std::iota(counted.begin(), counted.end(), 0);
  return counted;
}

H5Extent LabelledGroup::extent(const std::vector<std::string>& dims) const {
  H5Extent extent;
  for (const auto& dim : dims) {
    const auto axis =
        std::ranges::find_if(axes, [&](const auto& one) { return one.about.name == dim; });
    if (axis == axes.end())
      throw std::invalid_argument(fmt::format("{}: no axis is called {}", path, dim));
    extent.push_back(static_cast<hsize_t>(axis->size));
  }
  return extent;
}

void add_axis(LabelledGroup& group, LabelledAxis axis) {
  for (const auto& there : group.axes)
    if (there.about.name == axis.about.name) return;
  group.axes.push_back(std::move(axis));
}

void add_head_axes(LabelledGroup& group, const std::vector<std::string>& dims, int64_t layers,
                   int64_t heads, int64_t experts) {
  const auto axis = [&](const char* name, const char* what, const char* comment, int64_t size) {
    if (std::find(dims.begin(), dims.end(), name) != dims.end())
      add_axis(group, {{name, "1", what, comment}, size});
  };
  axis("layer", "layer", "counted from 0 at the input", layers);
  axis("head", "head", "original index, before any pruning", heads);
  axis("layer2", "layer of the other head of a pair", "counted from 0 at the input", layers);
  axis("head2", "the other head of a pair", "original index, before any pruning", heads);
  axis("expert", "expert of a head", "counted from 0", experts);
}

void describe(H5Dataset& data, const LogVariable& about) {
  data.set_text("units", about.units);
  data.set_text("long_name", about.long_name);
  data.set_text("comment", about.comment);
}

void attach_axes(H5Dataset& data, const std::vector<std::string>& dims, const AxisScales& scales,
                 unsigned ahead) {
  for (unsigned a = 0; a < dims.size(); ++a) data.attach_scale(ahead + a, scales.at(dims[a]));
}

AxisScales write_arrays(H5Group& group, const LabelledGroup& spec, H5Type type) {
  AxisScales scales;
  for (const auto& axis : spec.axes) scales[axis.about.name] = make_axis(group, axis, type);
  for (const auto& array : spec.arrays) make_array(group, spec, array, scales);
  return scales;
}

}  // namespace headlab
