#include "experiments/logs/result_arrays.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "core/errors.h"
#include "experiments/files/h5.h"
#include "experiments/files/replacement_file.h"
#include "experiments/logs/log_schema.h"
#include "experiments/logs/log_table.h"
#include "experiments/system/host_name.h"
#include "experiments/system/signals.h"

namespace headlab {
namespace {

const ResultAxis& axis_named(const ResultGroup& group, const std::string& name) {
  for (const auto& axis : group.axes)
    if (axis.about.name == name) return axis;
  throw std::invalid_argument(fmt::format("{}: no axis is called {}", group.path, name));
}

H5Dataset make_axis(H5Group& group, const ResultAxis& axis) {
  const H5Extent extent{static_cast<hsize_t>(axis.size)};
  auto scale = group.make_dataset(axis.about.name,
                                  {axis.labels.empty() ? H5Type::kI64 : H5Type::kText, extent});
  scale.make_scale(axis.about.name);
  describe(scale, axis.about);
  if (!axis.labels.empty()) {
    scale.write_text(axis.labels);
    return scale;
  }
  auto places = axis.coordinates;
  if (places.empty()) {
    places.resize(axis.size);
    std::iota(places.begin(), places.end(), 0);
  }
  scale.write<int64_t>(places);
  return scale;
}

void make_array(H5Group& group, const ResultGroup& spec, const ResultArray& array,
                const std::map<std::string, H5Dataset>& scales) {
  H5Extent extent;
  for (const auto& dim : array.dims)
    extent.push_back(static_cast<hsize_t>(axis_named(spec, dim).size));
  const bool of_text = !array.texts.empty();
  const auto count = of_text ? array.texts.size() : array.values.size();
  if (element_count(extent) != count)
    throw std::invalid_argument(fmt::format("{}/{}: {} values for {}", spec.path, array.about.name,
                                            count, fmt::join(extent, " x ")));
  H5Layout layout{of_text              ? H5Type::kText
                  : array.flags        ? H5Type::kU8
                  : array.about.counts ? H5Type::kI64
                                       : H5Type::kF64,
                  extent};
  if (layout.type == H5Type::kF64) layout.fill = std::numeric_limits<double>::quiet_NaN();
  auto data = group.make_dataset(array.about.name, layout);
  describe(data, array.about);
  for (const auto& [name, value] : array.attributes) data.set_number(name, value);
  for (const auto& [name, text] : array.notes) data.set_text(name, text);
  for (const auto& [name, value] : array.count_attributes) data.set_number(name, value);
  for (unsigned a = 0; a < array.dims.size(); ++a) data.attach_scale(a, scales.at(array.dims[a]));
  if (of_text) return data.write_text(array.texts);
  if (array.about.counts) {
    std::vector<int64_t> numbers;
    for (const double value : array.values)
      numbers.push_back(std::isnan(value) ? kNoCount : std::llround(value));
    // Named only where it is needed: readers give all that has one as floating-point numbers.
    if (std::count(numbers.begin(), numbers.end(), kNoCount) > 0)
      data.set_number("_FillValue", kNoCount);
    return data.write<int64_t>(numbers);
  }
  if (!array.flags) {
    data.set_number("_FillValue", std::numeric_limits<double>::quiet_NaN());
    data.write<double>(array.values);
    return;
  }
  const uint8_t values[] = {0, 1};
  data.set_numbers<uint8_t>("flag_values", values);
  data.set_text("flag_meanings", "no yes");
  data.write<uint8_t>(std::vector<uint8_t>(array.values.begin(), array.values.end()));
}

// What is to become `target`, while this process makes it.
std::filesystem::path unfinished_of(const std::filesystem::path& target) {
  return target.parent_path() /
         fmt::format(".{}@{}@{}.headlab.tmp", target.filename().string(), host_name(), getpid());
}

// The process of this host that made what an unfinished file is called, as unfinished_of() names it
// or an older version did, `.<target>.<process>.tmp`; 0: it is none.
pid_t maker_of(std::string_view name, const std::string& target) {
  const auto number = [](std::string_view text) {
    pid_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() ? value : 0;
  };
  constexpr std::string_view kNew = ".headlab.tmp", kOld = ".tmp";
  if (name.ends_with(kNew)) {
    name.remove_suffix(kNew.size());
    const size_t at = name.rfind('@');
    if (at == name.npos || !name.substr(0, at).ends_with('@' + host_name())) return 0;
    return number(name.substr(at + 1));
  }
  const auto begin = '.' + target + '.';
  if (!name.starts_with(begin) || !name.ends_with(kOld)) return 0;
  name.remove_suffix(kOld.size());
  return name.size() > begin.size() ? number(name.substr(begin.size())) : 0;
}

// Those that a killed process left where `target` is to lie.
void remove_unfinished_beside(const std::filesystem::path& target) {
  std::error_code none;
  std::vector<std::filesystem::path> left;
  for (std::filesystem::directory_iterator entry(target.parent_path(), none), end;
       !none && entry != end; entry.increment(none)) {
    const auto maker = maker_of(entry->path().filename().string(), target.filename().string());
    if (maker > 0 && kill(maker, 0) != 0 && errno == ESRCH) left.push_back(entry->path());
  }
  for (const auto& path : left) std::filesystem::remove(path, none);
}

void make_group(H5Group& root, const ResultGroup& spec) {
  auto group = root.make_group(spec.path);
  std::map<std::string, H5Dataset> scales;
  for (const auto& axis : spec.axes) scales[axis.about.name] = make_axis(group, axis);
  for (const auto& array : spec.arrays) make_array(group, spec, array, scales);
}

}  // namespace

void add_axis(ResultGroup& group, ResultAxis axis) {
  for (const auto& there : group.axes)
    if (there.about.name == axis.about.name) return;
  group.axes.push_back(std::move(axis));
}

void add_head_axes(ResultGroup& group, const std::vector<std::string>& dims, int64_t layers,
                   int64_t heads) {
  const auto axis = [&](const char* name, const char* what, const char* comment, int64_t size) {
    if (std::find(dims.begin(), dims.end(), name) != dims.end())
      add_axis(group, {{name, "1", what, comment}, size});
  };
  axis("layer", "layer", "counted from 0 at the input", layers);
  axis("head", "head", "original index, before any pruning", heads);
  axis("layer2", "layer of the other head of a pair", "counted from 0 at the input", layers);
  axis("head2", "the other head of a pair", "original index, before any pruning", heads);
}

void require_place(const std::filesystem::path& path) {
  const auto directory = std::filesystem::absolute(path).parent_path();
  std::error_code none;
  const auto refuse = [&](const std::string& why) {
    throw RunError(fmt::format("{}: cannot be written: {}", path.string(), why));
  };
  if (!std::filesystem::is_directory(directory, none))
    refuse(fmt::format("there is no directory {}", path.parent_path().string()));
  if (std::filesystem::is_directory(path, none)) refuse("it is a directory; name a file in it");
  if (access(directory.c_str(), W_OK) != 0) refuse("its directory is read-only");
  remove_unfinished_beside(std::filesystem::absolute(path));
}

void write_results(const std::filesystem::path& path, const RootAttributes& attributes,
                   const std::vector<ResultGroup>& groups) {
  const auto target = std::filesystem::absolute(path);
  const auto making = unfinished_of(target);
  remove_unfinished_beside(target);
  try {
    const UnfinishedFile unfinished(making);
    auto file = H5File::create(making);
    auto root = file.root();
    describe_file(root, attributes, "finished");
    for (const auto& group : groups) make_group(root, group);
    file.sync();
    file.close();
    std::filesystem::rename(making, target);
  } catch (const std::exception& e) {
    std::error_code none;
    std::filesystem::remove(making, none);
    if (dynamic_cast<const std::logic_error*>(&e)) throw;
    throw RunError(fmt::format("{}: cannot be written: {}", path.string(), e.what()));
  }
  sync_directory(target.parent_path());
}

}  // namespace headlab
