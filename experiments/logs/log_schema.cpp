#include "experiments/logs/log_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
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
const LogVariable kLayer = {"layer", "1", "layer", "counted from 0 at the input"};
const LogVariable kHead = {"head", "1", "head", "original index, before any pruning"};
const LogVariable kHead2 = {"head2", "1", "the other head of a pair",
                            "original index, before any pruning"};
const LogVariable kExpert = {"expert", "1", "expert of a head", "counted from 0"};

std::vector<int32_t> count_to(int64_t n) {
  std::vector<int32_t> values(n);
  std::iota(values.begin(), values.end(), 0);
  return values;
}

std::vector<int32_t> narrow(const std::vector<int64_t>& values) {
  return std::vector<int32_t>(values.begin(), values.end());
}

std::vector<LogColumn> named_columns(const std::vector<LogVariable>& variables) {
  std::vector<LogColumn> columns;
  for (const LogVariable& v : variables)
    columns.push_back({v, v.counts ? H5Type::kI64 : H5Type::kF32, {}});
  return columns;
}

LogGroup scalars_group(const LogLayout& layout) {
  LogGroup group{"scalars", kUpdates, {}, {}, {}, ""};
  group.columns = {
      {{"wall_time", "s", "seconds of training",
        "time since the run began, without the time between a stop and its resume"},
       H5Type::kF64,
       {}},
      {{"tokens", "token", "tokens seen", "sum over all updates so far"}, H5Type::kI64, {}}};
  for (LogColumn& column : named_columns(layout.scalars)) group.columns.push_back(column);
  return group;
}

LogGroup heads_group(const LogSite& site) {
  LogGroup group{"heads/" + site.name,
                 kUpdates,
                 {{kLayer, count_to(site.layers)}, {kHead, count_to(site.heads)}},
                 {},
                 {},
                 ""};
  const auto add_axis = [&](LogColumn& column, const LogVariable& about, int64_t count) {
    column.axes.push_back(about.name);
    if (group.extent({about.name}).empty()) group.axes.push_back({about, count_to(count)});
  };
  for (const LogStatistic& s : site.statistics) {
    LogColumn column{s, H5Type::kF32, {"layer"}};
    if (s.dims != LogDims::kLayer) column.axes.push_back("head");
    if (s.dims == LogDims::kLayerHeadHead) add_axis(column, kHead2, site.heads);
    if (s.dims == LogDims::kLayerHeadExpert) add_axis(column, kExpert, site.experts);
    group.columns.push_back(column);
  }
  group.columns.push_back({{"head_mask", "1", "which heads there are",
                            "0: pruned, or the layer has fewer heads; its statistics are NaN"},
                           H5Type::kU8,
                           {"layer", "head"}});
  return group;
}

std::string number_in(const std::string& vocabulary) {
  return "number in /" + vocabulary + "; -1: no token";
}

// Images in the group of their maps, over axes of their own.
void add_images(LogGroup& group, const LogImages& images) {
  const auto axis = [&](const char* name, const char* long_name, const char* comment, int64_t n) {
    group.axes.push_back({{name, "1", long_name, comment}, count_to(n)});
  };
  axis("channel", "channel of an image", "0: grey; of three: red, green, blue", images.channels);
  axis("row", "row of pixels", "counted from 0 at the top", images.rows);
  axis("column", "column of pixels", "counted from 0 on the left", images.columns);
  group.constants.push_back(
      {{"image", "1", "image of a probe",
        "round(255 (x - min x) / (max x - min x)) of the pixels x that the model gets, min and max "
        "over the whole image; 0 where all are the same. Behind cls_tokens places that are no "
        "patch, the positions are its patches of patch x patch pixels, row by row"},
       {"probe", "channel", "row", "column"},
       {images.pixels.begin(), images.pixels.end()},
       H5Type::kU8,
       {{"patch", static_cast<int32_t>(images.patch)},
        {"cls_tokens", static_cast<int32_t>(images.cls_tokens)}}});
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
  LogGroup group{"attention/" + site.name, kSnapshots, {}, {}, {}, maps.normalization};
  group.axes = {
      {{"probe", "1", "probe", "a fixed example of the validation split"}, count_to(maps.probes)},
      {kLayer, narrow(maps.layers)},
      {kHead, narrow(maps.heads)},
      {{"query", "1", "query position", "counted from 0 in the probe"}, narrow(maps.query)},
      {{"key", "1", "key position", "counted from 0 in the probe"}, narrow(maps.key)}};
  group.constants = {
      {{"query_token", "1", "token at a query position", number_in(maps.query_vocabulary)},
       {"probe", "query"},
       maps.query_token},
      {{"key_token", "1", "token at a key position", number_in(maps.key_vocabulary)},
       {"probe", "key"},
       maps.key_token},
      {{"query_length", "token", "queries of a probe", "positions from here on are padding"},
       {"probe"},
       maps.query_length},
      {{"key_length", "token", "keys of a probe", "positions from here on are padding"},
       {"probe"},
       maps.key_length}};
  group.columns = {{{"weights", "1", "attention weights",
                     formula + "; no such layer, head or position: missing"},
                    maps.packed ? H5Type::kU16 : H5Type::kF32,
                    {"probe", "layer", "head", "query", "key"}}};
  if (maps.images) add_images(group, *maps.images);
  return group;
}

LogGroup resumes_group() {
  LogGroup group{"resumes", {"row", "1", "resume", "counted from 0 in order of time"}, {}, {}, {},
                 ""};
  group.columns = {
      {{"step", "1", "optimizer updates finished", "of the checkpoint that the run went on from"},
       H5Type::kI64,
       {}},
      {{"wall_time", "s", "seconds of training", "of that checkpoint"}, H5Type::kF64, {}}};
  return group;
}

void check(const LogGroup& group) {
  const auto refuse = [&](const std::string& name, const std::string& what) {
    throw std::invalid_argument("/" + group.path + "/" + name + ": " + what);
  };
  for (const LogAxis& axis : group.axes) {
    if (axis.values.empty()) refuse(axis.about.name, "an axis needs at least one coordinate");
  }
  for (const LogConstant& c : group.constants) {
    if (c.values.size() != element_count(group.extent(c.axes))) {
      refuse(c.about.name, fmt::format("{} values, {} wanted", c.values.size(),
                                       element_count(group.extent(c.axes))));
    }
  }
  std::vector<std::string> names = {group.key.name};
  for (const LogAxis& axis : group.axes) names.push_back(axis.about.name);
  for (const LogConstant& c : group.constants) names.push_back(c.about.name);
  for (const LogColumn& c : group.columns) names.push_back(c.about.name);
  for (const std::string& name : names) {
    if (name.empty() || name.find('/') != std::string::npos) refuse(name, "is no variable name");
    if (std::count(names.begin(), names.end(), name) > 1) refuse(name, "is given twice");
  }
}

}  // namespace

H5Extent LogGroup::extent(const std::vector<std::string>& names) const {
  H5Extent extent;
  for (const std::string& name : names) {
    for (const LogAxis& axis : axes) {
      if (axis.about.name == name) extent.push_back(axis.values.size());
    }
  }
  return extent;
}

size_t LogGroup::row_bytes(const LogColumn& column) const {
  return element_count(extent(column.axes)) * h5_size(column.type);
}

size_t LogGroup::row_bytes() const {
  size_t bytes = 0;
  for (const LogColumn& column : columns) bytes += row_bytes(column);
  return bytes;
}

std::vector<LogGroup> log_groups(const LogLayout& layout) {
  std::vector<LogGroup> groups = {scalars_group(layout),
                                  {"eval", kSnapshots, {}, {}, named_columns(layout.evals), ""}};
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
