#include "experiments/logs/log_inspect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/errors.h"
#include "experiments/logs/log_walk.h"
#include "experiments/system/child_process.h"
#include "experiments/system/memory.h"
#include "experiments/system/program_name.h"
#include "experiments/system/writer_lock.h"
#include "experiments/text/shell_word.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

// Opened to be read, whatever its state.
H5File open_log(const std::filesystem::path& path, const H5FileFlags& flags,
                const std::optional<std::string>& writer) {
  if (!flags.being_written) return H5File::open(path);
  if (!writer) return H5File::open_dead(path);
  if (flags.swmr) return H5File::open_live(path);
  throw RunError(path.string() + ": is being written by " + *writer +
                 " with log.swmr: false, so that nobody can read it until that ends");
}

const char* type_word(std::optional<H5Type> type) {
  if (!type) return "unknown";
  constexpr const char* kWords[] = {"u1", "u2", "i4", "i8", "f4", "f8", "text"};
  return kWords[static_cast<int>(*type)];
}

// The shortest number that a float reads back from: 0.1, not 0.10000000149.
Json tidy(double value, std::optional<H5Type> type) {
  if (std::isnan(value)) return nullptr;
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";  // JSON has no such number
  if (type == H5Type::kI32 || type == H5Type::kI64) return static_cast<int64_t>(value);
  if (type != H5Type::kF32) return value;
  return std::stod(fmt::format("{}", static_cast<float>(value)));
}

// One row: its value, or the range of its values.
Json last_values(const H5Dataset& data, hsize_t row) {
  H5Extent count = data.extent(), start(count.size(), 0);
  count[0] = 1;
  start[0] = row;
  const std::vector<double> values = data.read_at<double>(start, count);
  if (count.size() == 1) return tidy(values[0], data.type());
  double sum = 0, least = NAN, most = NAN;
  int64_t present = 0;
  for (const double value : values) {
    if (std::isnan(value)) continue;
    least = std::fmin(least, value);
    most = std::fmax(most, value);
    sum += value;
    ++present;
  }
  const double mean = present ? sum / static_cast<double>(present) : NAN;
  return {{"mean", tidy(mean, H5Type::kF32)},
          {"min", tidy(least, data.type())},
          {"max", tidy(most, data.type())},
          {"missing", static_cast<int64_t>(values.size()) - present}};
}

Json inspect_variable(const H5Dataset& data, const std::optional<LogRecords>& records) {
  H5Extent shape = data.extent();
  const bool counted = records && data.grows();
  if (counted) shape[0] = records->complete;
  Json out = {{"name", data.path().substr(data.path().rfind('/') + 1)},
              {"type", type_word(data.type())},
              {"shape", shape}};
  if (data.has_attribute("units")) out["units"] = data.text("units");
  if (data.has_attribute("normalization")) {
    out["normalization"] = data.text("normalization");
    out["stored_bytes"] = data.storage_size();
    const hsize_t size = data.type() == H5Type::kU16 ? sizeof(uint16_t) : sizeof(float);
    out["bytes"] = element_count(shape) * size;
  } else if (counted && records->complete > 0 && data.type() && data.type() != H5Type::kText) {
    out["last"] = last_values(data, records->complete - 1);
  }
  return out;
}

Json inspect_group(const H5Group& group) {
  Json out = {{"path", group.path()}};
  const std::optional<LogRecords> records = log_records(group);
  if (records) {
    out["records"] = records->complete;
    const std::string key = records->key.path().substr(group.path().size() + 1);
    out["last_" + key] =
        records->complete > 0 ? last_values(records->key, records->complete - 1) : Json(nullptr);
  }
  Json axes = Json::object(), variables = Json::array();
  for (const std::string& name : group.names()) {
    if (!group.has_dataset(name)) continue;
    const H5Dataset data = group.dataset(name);
    if (data.is_scale()) {
      if (!data.grows()) axes[name] = data.extent().at(0);
    } else if (name == "skipped_from") {
      const int64_t step = data.read<int64_t>().at(0);
      out["skipped_from"] = step < 0 ? Json(nullptr) : Json(step);
    } else {
      variables.push_back(inspect_variable(data, records));
    }
  }
  out["axes"] = axes;
  out["variables"] = variables;
  return out;
}

// The one text that is written anew, which a full disk may take the old of and not the new.
std::string status_of(const H5Group& root) {
  try {
    return root.text("status");
  } catch (const RunError&) {
    return "lost";
  }
}

Json inspect_here(const std::filesystem::path& path) {
  const H5FileFlags flags = h5_file_flags(path);
  if (!flags.hdf5) throw RunError(path.string() + ": is not an HDF5 file");
  const std::optional<std::string> writer = WriterLock::holder(std::filesystem::canonical(path));
  const H5File file = open_log(path, flags, writer);
  const H5Group root = file.root();
  require_log_schema(root);
  const hsize_t size = std::filesystem::file_size(path);
  const bool dead = flags.being_written && !writer;
  if (dead) {
    require_uncut(file, path, size);
    require_readable(root);
  }
  Json out = {{"file", path.string()}, {"bytes", size}};
  for (const char* name : {"schema_name", "schema_version", "run_id", "title", "created_utc"}) {
    out[name] = root.text(name);
  }
  out["status"] = status_of(root);
  out["writer"] = writer ? Json(*writer) : Json(nullptr);
  out["needs_repair"] = dead;
  out["groups"] = Json::array();
  each_group(root, [&](const H5Group& group) {
    Json inspected = inspect_group(group);
    if (!inspected["variables"].empty()) out["groups"].push_back(std::move(inspected));
  });
  return out;
}

std::string number_text(const Json& value) {
  if (value.is_null()) return "missing";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    const bool count = number == std::round(number) && std::abs(number) < 1e15;
    return count ? fmt::format("{:.0f}", number) : fmt::format("{:.5g}", number);
  }
  return value.dump();
}

// Whether there is no number of it in the last record, of any head: this run has no such statistic.
bool is_absent(const Json& variable) {
  return variable.contains("last") && variable["last"].is_object() &&
         variable["last"]["mean"].is_null();
}

// Whether it is 0 of every head in the last record, as a share of tokens that do not occur is.
bool is_zero(const Json& variable) {
  return variable.contains("last") && variable["last"].is_object() &&
         variable["last"]["min"] == 0 && variable["last"]["max"] == 0;
}

std::string variable_text(const Json& variable, size_t width) {
  const std::string units = variable.value("units", "1");
  const std::string unit = units == "1" ? "" : " " + units;
  std::string text = fmt::format("  {:<{}}  ", variable["name"].get<std::string>(), width);
  if (variable.contains("normalization")) {
    text += fmt::format(
        "{} {}, {} stored, {} before compression", variable["normalization"].get<std::string>(),
        variable["type"].get<std::string>(), readable_bytes(variable["stored_bytes"]),
        readable_bytes(variable["bytes"]));
  } else if (!variable.contains("last")) {
    text += fmt::format("{} {}", variable["type"].get<std::string>(), variable["shape"].dump());
  } else if (const Json& last = variable["last"]; last.is_object()) {
    text += fmt::format("{}{} ({} to {})", number_text(last["mean"]), unit,
                        number_text(last["min"]), number_text(last["max"]));
    if (last["missing"] != 0) text += fmt::format(", {} missing", last["missing"].dump());
  } else {
    text += number_text(last) + unit;
  }
  return text + "\n";
}

// "1 head", "4 heads", "64 queries"
std::string count_text(const std::string& name, int64_t count) {
  if (count == 1) return "1 " + name;
  const bool query = name.ends_with("ry");
  return fmt::format("{} {}{}", count, query ? name.substr(0, name.size() - 1) : name,
                     query ? "ies" : "s");
}

std::string group_text(const Json& group) {
  std::string text = group["path"].get<std::string>();
  if (group.contains("records")) {
    text += ": " + count_text("record", group["records"].get<int64_t>());
    if (group.contains("last_step") && !group["last_step"].is_null()) {
      text += ", the last of step " + group["last_step"].dump();
    }
  }
  for (const auto& [name, size] : group["axes"].items()) {
    const bool again = name.ends_with("2");  // of layers or heads, which have been counted
    if (!again) text += ", " + count_text(name, size.get<int64_t>());
  }
  text += "\n";
  if (group.contains("skipped_from") && !group["skipped_from"].is_null()) {
    text += fmt::format("  left out from step {} on: log.attention.max_bytes was reached\n",
                        group["skipped_from"].dump());
  }
  size_t width = 20;
  for (const Json& variable : group["variables"])
    width = std::max(width, variable["name"].get_ref<const std::string&>().size());
  std::vector<std::string> absent, zero;
  for (const Json& variable : group["variables"]) {
    if (is_absent(variable))
      absent.push_back(variable["name"]);
    else if (is_zero(variable))
      zero.push_back(variable["name"]);
    else
      text += variable_text(variable, width);
  }
  if (!zero.empty()) text += fmt::format("  0 of every head: {}\n", fmt::join(zero, ", "));
  if (!absent.empty()) text += fmt::format("  no number of {}\n", fmt::join(absent, ", "));
  return text;
}

}  // namespace

Json inspect_log(const std::filesystem::path& path) {
  return Json::parse(in_child_process(path.string(), [&] { return inspect_here(path).dump(); }));
}

std::string to_text(const Json& log) {
  const auto text_of = [&](const char* name) { return log[name].get<std::string>(); };
  std::string text =
      fmt::format("{}: a log, schema {} {}, {}, {}\n", text_of("file"), text_of("schema_name"),
                  text_of("schema_version"), text_of("status"), readable_bytes(log["bytes"]));
  text += fmt::format("run {}, made {}: {}\n", text_of("run_id"), text_of("created_utc"),
                      text_of("title"));
  if (!log["writer"].is_null()) text += fmt::format("being written by {}\n", text_of("writer"));
  if (log["needs_repair"] == true)
    text += fmt::format("its writer died: `{} repair {}` makes it whole\n", program_name(),
                        shell_word(text_of("file")));
  for (const Json& group : log["groups"]) text += "\n" + group_text(group);
  return text;
}

}  // namespace headlab
