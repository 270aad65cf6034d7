// What the tests of commands share: a folder in which they run, and what they look at behind it.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/files/safetensors.h"
#include "tests/started_program.h"

namespace headlab::testing {

using Json = nlohmann::json;

inline const std::filesystem::path kProject{build::kSourceDir};
inline const std::filesystem::path kGolden = kProject / "tests" / "golden";

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    lines.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return lines;
}

inline std::string replaced(std::string text, const std::string& old, const std::string& fresh) {
  const size_t at = text.find(old);
  REQUIRE(at != std::string::npos);
  return text.replace(at, old.size(), fresh);
}

inline Json json_of(const std::filesystem::path& path) { return Json::parse(read_bytes(path)); }

// Every file below a directory: its bytes, where a link leads, and when it was written.
inline std::map<std::string, std::string> snapshot(const std::filesystem::path& directory) {
  namespace fs = std::filesystem;
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    std::string& file = files[fs::relative(entry.path(), directory).string()];
    if (entry.is_symlink()) {
      file = fs::read_symlink(entry.path()).string();
    } else if (entry.is_regular_file()) {
      file = read_bytes(entry.path()) +
             std::to_string(entry.last_write_time().time_since_epoch().count());
    }
  }
  return files;
}

// The only entry of a directory.
inline std::filesystem::path only_entry(const std::filesystem::path& directory) {
  const auto names = names_in(directory);
  REQUIRE(names.size() == 1);
  return directory / *names.begin();
}

// A tensor of a file, which must have this type and shape.
template <class T>
std::vector<T> numbers(const SafetensorsFile& file, const std::string& name,
                       const std::vector<int64_t>& shape) {
  INFO(name);
  const TensorEntry* entry = file.find(name);
  REQUIRE(entry != nullptr);
  REQUIRE(entry->dtype == (sizeof(T) == 4 ? Dtype::kF32 : Dtype::kF64));
  CHECK(entry->shape == shape);
  std::vector<T> values(entry->bytes / sizeof(T));
  std::memcpy(values.data(), entry->data, entry->bytes);
  return values;
}

inline TensorEntry integers(const std::string& name, const std::vector<int64_t>& shape,
                            const std::vector<int64_t>& values) {
  return {name, Dtype::kI64, shape, reinterpret_cast<const std::byte*>(values.data()),
          values.size() * sizeof(int64_t)};
}

inline std::vector<float> floats(const SafetensorsFile& file, const std::string& name,
                                 const std::vector<int64_t>& shape) {
  return numbers<float>(file, name, shape);
}

// One line on stderr that holds all of `parts`, and nothing on stdout.
inline void check_refusal(const Outcome& outcome, int code, const std::vector<std::string>& parts) {
  INFO("stdout: " << outcome.out << "\nstderr: " << outcome.err);
  CHECK(outcome.code == code);
  CHECK(outcome.out.empty());
  CHECK(lines_of(outcome.err).size() == 1);
  CHECK_THAT(outcome.err, Catch::Matchers::StartsWith("headlab: "));
  for (const std::string& part : parts) CHECK_THAT(outcome.err, Catch::Contains(part));
}

// A config that trains in a fraction of a second: the places of its keys are part of messages.
inline const std::string kTinyConfig = R"(name: tiny
seed: 7
data: {kind: char, path: text.txt, context: 8}
model: {kind: decoder, layers: 1, d_model: 16, heads: 2, attention: {kind: mha}}
train:
  steps: 5
  batch: 4
  warmup: 1
  eval_every: 2
  eval_batches: 1
  checkpoint: {every: 2}
log: {every: 1, stats_every: 2, attention: {every: 2, probes: 1}}
)";

// A directory with tiny.yaml and its text, in which commands run.
class Bench {
 public:
  Bench() {
    std::string text;
    while (text.size() < 2000) text += "The quick brown fox jumps over a lazy dog, and naps.\n";
    write_bytes(*this / "text.txt", text);
    write_bytes(*this / "tiny.yaml", kTinyConfig);
  }

  std::filesystem::path operator/(const std::string& name) const { return scratch_ / name; }
  const std::filesystem::path& path() const { return scratch_.path(); }
  Outcome headlab(const Arguments& arguments) const { return testing::headlab(arguments, path()); }

  // Runs tiny.yaml to its end; the run's directory.
  std::filesystem::path train(const Arguments& overrides = {}) const {
    Arguments arguments{"run", "tiny.yaml"};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    const Outcome outcome = headlab(arguments);
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    return lines_of(outcome.out).at(0);
  }

 private:
  Scratch scratch_;
};

// One with a run that all cases of a file share; who inherits trains it.
class TrainedBench : public Bench {
 public:
  // What a command says of the run.
  Json json(Arguments arguments) const {
    arguments.insert(arguments.begin() + 1, run_);
    arguments.push_back("--json");
    const Outcome outcome = headlab(arguments);
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    return Json::parse(outcome.out);
  }
  const std::string& run() const { return run_; }

 protected:
  std::string run_;  // its directory
};

}  // namespace headlab::testing
