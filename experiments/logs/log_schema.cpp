#include "experiments/logs/log_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "experiments/text/utf8.h"

namespace headlab {
namespace {

const LogVariable kUpdates = {
    "step", "1", "optimizer updates finished",
    "row n is the n-th logged update: its micro-batches pooled, train mode, the weights before it; "
    "row 0 is before training"};
const LogVariable kSnapshots = {"step", "1", "optimizer updates finished",
                                "the weights after this many updates, eval mode"};
std::vector<LogColumn> named_columns(const std::vector<LogVariable>& variables) {
  std::vector<LogColumn> columns;
  for (const LogVariable& v : variables)
    columns.push_back({v, v.counts ? H5Type::kI64 : H5Type::kF32, {}});
  return columns;
}

LogGroup group_of(const std::string& path, const LogVariable& key,
                  std::vector<LogColumn> columns = {}) {
  LogGroup group{{path, {}, {}}, key};
  group.columns = std::move(columns);
  return group;
}

LogGroup scalars_group(const LogLayout& layout) {
  auto group = group_of(
      "scalars", kUpdates,
      {{{"wall_time", "s", "seconds of training",
         "time since the run began, without the time between a stop and its resume"},
        H5Type::kF64,
        {}},
       {{"tokens", "token", "tokens seen", "sum over all updates so far"}, H5Type::kI64, {}}});
  for (LogColumn& column : named_columns(layout.scalars)) group.columns.push_back(column);
  return group;
}

std::vector<std::string> names_of(LogDims dims) {
  switch (dims) {
    case LogDims::kLayer:
      return {"layer"};
    case LogDims::kLayerHead:
      return {"layer", "head"};
    case LogDims::kLayerHeadHead:
      return {"layer", "head", "head2"};
    case LogDims::kLayerHeadExpert:
      return {"layer", "head", "expert"};
  }
  throw std::logic_error("no such dimensions");
}

LogGroup heads_group(const LogSite& site) {
  auto group = group_of("heads/" + site.name, kUpdates);
  const auto add = [&](const LogVariable& about, H5Type type, LogDims dims) {
    group.columns.push_back({about, type, names_of(dims)});
    add_head_axes(group, group.columns.back().dims, site.layers, site.heads, site.experts);
  };
  for (const LogStatistic& s : site.statistics) add(s, H5Type::kF32, s.dims);
  add({"head_mask", "1", "which heads there are",
       "0: pruned, or the layer has fewer heads; its statistics are NaN"},
      H5Type::kU8, LogDims::kLayerHead);
  return group;
}

std::string number_in(const std::string& vocabulary) {
  return "number in /" + vocabulary + "; -1: no token";
}

// Images in the group of their maps, over axes of their own.
void add_images(LogGroup& group, const LogImages& images) {
  const auto axis = [&](const char* name, const char* long_name, const char* comment, int64_t n) {
    group.axes.push_back({{name, "1", long_name, comment}, n});
  };
  axis("channel", "channel of an image", "0: grey; of three: red, green, blue", images.channels);
  axis("row", "row of pixels", "counted from 0 at the top", images.rows);
  axis("column", "column of pixels", "counted from 0 on the left", images.columns);
  LabelledArray image{
      {"image", "1", "image of a probe",
       "round(255 (x - min x) / (max x - min x)) of the pixels x that the model gets, min and max "
       "over the whole image; 0 where all are the same. Behind cls_tokens places that are no "
       "patch, the positions are its patches of patch x patch pixels, row by row"},
      {"probe", "channel", "row", "column"},
      {images.pixels.begin(), images.pixels.end()}};
  image.count_attributes = {{"patch", images.patch}, {"cls_tokens", images.cls_tokens}};
  image.type = H5Type::kU8;
  group.arrays.push_back(std::move(image));
}

LogGroup attention_group(const LogSite& site) {
  const LogMaps& maps = *site.maps;
  if (maps.packed && maps.normalization == "composed") {
    throw std::invalid_argument(site.name + ": composed maps are signed and cannot be packed");
  }
  const std::string formula =
      maps.normalization == "softmax"
          ? "weight of a query (row) over the keys after the softmax, before dropout and gates"
          : "weight of a query (row) over the keys as the head applies it, before dropout and "
            "gates";
  auto group = group_of("attention/" + site.name, kSnapshots);
  group.normalization = maps.normalization;
  const auto axis = [&](const LogVariable& about, const std::vector<int64_t>& places) {
    group.axes.push_back({about, std::ssize(places), {}, places});
  };
  group.axes = {{{"probe", "1", "probe", "a fixed example of the validation split"}, maps.probes}};
  axis({"layer", "1", "layer", "counted from 0 at the input"}, maps.layers);
  axis({"head", "1", "head", "original index, before any pruning"}, maps.heads);
  axis({"query", "1", "query position", "counted from 0 in the probe"}, maps.query);
  axis({"key", "1", "key position", "counted from 0 in the probe"}, maps.key);
  const auto array = [&](const LogVariable& about, const std::vector<std::string>& dims,
                         const std::vector<int32_t>& values) {
    group.arrays.push_back({.about = about,
                            .dims = dims,
                            .values = {values.begin(), values.end()},
                            .type = H5Type::kI32});
  };
  array({"query_token", "1", "token at a query position", number_in(maps.query_vocabulary)},
        {"probe", "query"}, maps.query_token);
  array({"key_token", "1", "token at a key position", number_in(maps.key_vocabulary)},
        {"probe", "key"}, maps.key_token);
  array({"query_length", "token", "queries of a probe", "positions from here on are padding"},
        {"probe"}, maps.query_length);
  array({"key_length", "token", "keys of a probe", "positions from here on are padding"}, {"probe"},
        maps.key_length);
  group.columns = {{{"weights", "1", "attention weights",
                     formula + "; no such layer, head or position: missing"},
                    maps.packed ? H5Type::kU16 : H5Type::kF32,
                    {"probe", "layer", "head", "query", "key"}}};
  if (maps.images) add_images(group, *maps.images);
  return group;
}

LogGroup resumes_group() {
  return group_of(
      "resumes", {"row", "1", "resume", "counted from 0 in order of time"},
      {{{"step", "1", "optimizer updates finished", "of the checkpoint that the run went on from"},
        H5Type::kI64,
        {}},
       {{"wall_time", "s", "seconds of training", "of that checkpoint"}, H5Type::kF64, {}}});
}

void check(const LogGroup& group) {
  const auto refuse = [&](const std::string& name, const std::string& what) {
    throw std::invalid_argument("/" + group.path + "/" + name + ": " + what);
  };
  for (const auto& axis : group.axes)
    if (axis.size == 0) refuse(axis.about.name, "an axis needs at least one coordinate");
  for (const auto& array : group.arrays)
    if (const auto wanted = element_count(group.extent(array.dims)); array.values.size() != wanted)
      refuse(array.about.name, fmt::format("{} values, {} wanted", array.values.size(), wanted));
  std::vector<std::string> names = {group.key.name};
  for (const auto& axis : group.axes) names.push_back(axis.about.name);
  for (const auto& array : group.arrays) names.push_back(array.about.name);
  for (const LogColumn& c : group.columns) names.push_back(c.about.name);
  for (const std::string& name : names) {
    if (name.empty() || name.find('/') != std::string::npos) refuse(name, "is no variable name");
    if (std::count(names.begin(), names.end(), name) > 1) refuse(name, "is given twice");
  }
}

}  // namespace

size_t LogGroup::row_bytes(const LogColumn& column) const {
  return element_count(extent(column.dims)) * h5_size(column.type);
}

size_t LogGroup::row_bytes() const {
  size_t bytes = 0;
  for (const LogColumn& column : columns) bytes += row_bytes(column);
  return bytes;
}

std::vector<LogGroup> log_groups(const LogLayout& layout) {
  std::vector<LogGroup> groups = {scalars_group(layout),
                                  group_of("eval", kSnapshots, named_columns(layout.evals))};
  for (const LogSite& site : layout.sites) groups.push_back(heads_group(site));
  for (const LogSite& site : layout.sites) {
    if (site.maps) groups.push_back(attention_group(site));
  }
  groups.push_back(resumes_group());
  for (const LogGroup& group : groups) check(group);
  return groups;
}

int64_t map_bytes(const LogSite& site) {
  return site.maps ? static_cast<int64_t>(attention_group(site).row_bytes()) : 0;
}

std::string readable_text(const std::string& bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size();) {
    const size_t length = bytes[at] == '\0' ? 0 : utf8_length(bytes, at);
    if (length == 0) {
      text += fmt::format("<0x{:02X}>", static_cast<unsigned char>(bytes[at]));
    } else {
      text += bytes.substr(at, length);
    }
    at += std::max<size_t>(length, 1);
  }
  return text;
}

}  // namespace headlab
