#include "experiments/runs/run_metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "core/errors.h"
#include "experiments/files/json_text.h"
#include "experiments/files/regular_file.h"
#include "experiments/files/replacement_file.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

const std::map<std::string, double>& texts_of_numbers() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static const std::map<std::string, double> texts{
      {"NaN", std::nan("")}, {"Infinity", kInfinity}, {"-Infinity", -kInfinity}};
  return texts;
}

std::string line_of(const MetricsRow& row) {
  Json json{{"step", row.step}, {"tokens", row.tokens}, {"wall_s", metric_json(row.wall_s)}};
  for (const auto& [name, value] : row.values) json[name] = metric_json(value);
  return json.dump() + '\n';
}

std::optional<MetricsRow> parse_row(const std::string& line) {
  const auto json = parse_json<Json>(line).value_or(Json());
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) {
    return std::nullopt;
  }
  try {
    MetricsRow row;
    for (const auto& [name, value] : json.items()) {
      if (name == "step") {
        row.step = whole_number(value);
      } else if (name == "tokens") {
        row.tokens = whole_number(value);
      } else if (name == "wall_s") {
        row.wall_s = metric_value(value);
      } else {
        row.values[name] = metric_value(value);
      }
    }
    return row;
  } catch (const Json::type_error&) {
  } catch (const std::invalid_argument&) {
  }
  return std::nullopt;
}

// The next line that has an end; one that is longer than any row (a file of zeros) breaks off
// there.
bool whole_line(std::istream& in, std::string& line) {
  constexpr size_t kLongest = 1 << 20;
  line.clear();
  char c = 0;
  while (line.size() < kLongest && in.get(c)) {
    if (c == '\n') return true;
    line += c;
  }
  return line.size() == kLongest;
}

// Calls `use` with every whole row and the byte after it, until it returns false.
void each_row(const std::filesystem::path& path,
              const std::function<bool(MetricsRow, uint64_t end)>& use) {
  require_regular(path);
  std::ifstream in(path, std::ios::binary);
  std::string line;
  uint64_t end = 0;
  for (int64_t number = 1; whole_line(in, line); ++number) {
    end += line.size() + 1;
    std::optional<MetricsRow> row = parse_row(line);
    if (!row) {
      throw RunError(fmt::format("{}:{}: is no row of metrics; remove the line to go on",
                                 path.string(), number));
    }
    if (!use(std::move(*row), end)) return;
  }
  if (in.bad() || !in.is_open()) {
    throw RunError(fmt::format("{}: cannot be read: {}", path.string(),
                               std::generic_category().message(errno)));
  }
}

}  // namespace

Json metric_json(double value) {
  for (const auto& [text, number] : texts_of_numbers()) {
    if (value == number || (std::isnan(value) && std::isnan(number))) return text;
  }
  return value;
}

double metric_value(const Json& json) {
  if (json.is_number()) return json.get<double>();
  const auto& texts = texts_of_numbers();
  const auto found = json.is_string() ? texts.find(json.get<std::string>()) : texts.end();
  if (found == texts.end()) throw std::invalid_argument("no number: " + json.dump());
  return found->second;
}

std::vector<MetricsRow> read_metrics(const std::filesystem::path& path) {
  std::vector<MetricsRow> rows;
  each_row(path, [&](MetricsRow row, uint64_t) {
    rows.push_back(std::move(row));
    return true;
  });
  return rows;
}

MetricsFile::MetricsFile(std::filesystem::path path, int64_t step) : path_(std::move(path)) {
  open();
  uint64_t kept = 0;
  try {
    each_row(path_, [&](const MetricsRow& row, uint64_t end) {
      if (row.step > step) return false;
      kept = end;
      return true;
    });
    if (::ftruncate(descriptor_, static_cast<off_t>(kept)) != 0) fail();
  } catch (const RunError&) {
    ::close(descriptor_);
    throw;
  }
}

MetricsFile::~MetricsFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void MetricsFile::open() {
  descriptor_ = open_regular(path_, O_WRONLY | O_CREAT | O_APPEND);
  if (descriptor_ < 0) fail();
}

void MetricsFile::replace(const std::vector<MetricsRow>& rows) {
  std::string text;
  for (const auto& row : rows) text += line_of(row);
  replace_file(path_, text);
  ::close(std::exchange(descriptor_, -1));
  open();
}

void MetricsFile::append(const MetricsRow& row) {
  const std::string line = line_of(row);
  const char* next = line.data();
  size_t left = line.size();
  while (left > 0) {
    const ssize_t written = ::write(descriptor_, next, left);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail();
    next += written;
    left -= static_cast<size_t>(written);
  }
}

void MetricsFile::sync() {
  if (::fsync(descriptor_) != 0) fail();
}

void MetricsFile::fail() const {
  throw RunError(fmt::format("{}: cannot be written: {}", path_.string(),
                             std::generic_category().message(errno)));
}

}  // namespace headlab
