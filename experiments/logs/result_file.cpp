#include "experiments/logs/result_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "core/errors.h"
#include "experiments/files/h5.h"
#include "experiments/files/json_text.h"
#include "experiments/files/sha256.h"
#include "experiments/logs/log_walk.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const LabelledArray* array_at(const std::vector<LabelledGroup>& groups, const std::string& path) {
  for (const auto& group : groups)
    for (const auto& array : group.arrays)
      if (path == "/" + group.path + "/" + array.about.name) return &array;
  return nullptr;
}

// Whether an array has as many numbers, of as many examples, as the one in a file.
bool is_as_much(const LabelledArray& array, const H5Dataset& then) {
  const auto count = std::max(array.values.size(), array.texts.size());
  if (element_count(then.extent()) > count) return false;
  const auto examples = array.count_attributes.find("examples");
  return examples == array.count_attributes.end() || !then.has_attribute("examples") ||
         then.number("examples") <= static_cast<double>(examples->second);
}

// Which weights results are of: what a manifest says of their run. Null: not known.
Json weights_of_results(const Json& manifest) {
  const auto parent = manifest.is_object() ? manifest.value("parent", Json()) : Json();
  return parent.is_object() ? parent.value("step", Json()) : Json();
}

// Whether nothing is lost where these results take the place of the file: it has no more of the
// same weights, or cannot be read.
bool may_replace(const fs::path& path, const Json& manifest,
                 const std::vector<LabelledGroup>& groups) {
  try {
    const auto file = H5File::open(path);
    const auto then = parse_json<Json>(file.root().text("manifest_json"));
    if (then && weights_of_results(*then) != weights_of_results(manifest)) return true;
    bool covered = true;
    each_group(file.root(), [&](const H5Group& group) {
      for (const auto& name : group.names()) {
        if (!group.has_dataset(name)) continue;
        const auto data = group.dataset(name);
        if (data.is_scale()) continue;
        const auto* array = array_at(groups, data.path());
        covered = covered && array && is_as_much(*array, data);
      }
    });
    return covered;
  } catch (const RunError&) {
    return true;
  }
}

}  // namespace

fs::path result_file(const fs::path& run, const ResultQuestion& question, const Json& manifest,
                     const std::vector<LabelledGroup>& groups) {
  std::vector<std::string> words{question.about};
  words.insert(words.end(), question.measure.begin(), question.measure.end());
  const auto path = [&] {
    constexpr size_t kLongest = 120;  // a file's name takes 255 bytes
    auto name = fmt::format("{}", fmt::join(words, "-"));
    if (name.size() > kLongest)
      name = fmt::format("{}-{}", name.substr(0, kLongest), sha256(name).substr(0, 8));
    return run / (name + ".h5");
  };
  std::error_code none;
  if (!fs::exists(path(), none) || may_replace(path(), manifest, groups)) return path();
  words.insert(words.end(), question.extent.begin(), question.extent.end());
  if (question.extent.empty()) words.emplace_back("usual");
  return path();
}

std::string file_word(std::string_view text, size_t most) {
  std::string word;
  for (const unsigned char c : text) {
    if (word.size() >= most) break;
    if (std::isalnum(c) || c == '.')
      word += static_cast<char>(c);
    else if (!word.empty() && word.back() != '-')
      word += '-';
  }
  while (!word.empty() && (word.back() == '-' || word.back() == '.')) word.pop_back();
  return word;
}

}  // namespace headlab
