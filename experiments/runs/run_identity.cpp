#include "experiments/runs/run_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "experiments/data/folder_files.h"
#include "experiments/data/source.h"
#include "experiments/files/config_file.h"
#include "experiments/files/sha256.h"
#include "experiments/runs/resolved_settings.h"
#include "experiments/runs/run_code.h"
#include "experiments/runs/run_files.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/runs/same_run.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;
using ManifestJson = nlohmann::ordered_json;

// The files that the runs of a folder were made with. Looked for once: a sweep asks for each point.
const ManifestJson& files_of_runs(const fs::path& folder) {
  static std::map<fs::path, ManifestJson> known;
  const auto [at, fresh] = known.emplace(folder, ManifestJson::array());
  auto& files = at->second;
  if (!fresh) return files;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error);
       !error && entry != fs::directory_iterator(); entry.increment(error))
    for (auto& file : kept_data(entry->path())) files.push_back(std::move(file));
  return files;
}

// Small files are read as soon as others would be asked for them.
std::string digest_now(const fs::path& file, const fs::path& folder) {
  constexpr uintmax_t kLarge = 64 << 20;  // bytes
  std::error_code none;
  const bool large = !folder.empty() && fs::file_size(file, none) >= kLarge && !none;
  try {
    const auto entry = file_json(file, large ? files_of_runs(folder) : ManifestJson::array());
    return entry.at("sha256").get<std::string>();
  } catch (const DataError&) {
    return "";
  }
}

// model.safetensors of the checkpoint that a run, or a checkpoint in one, means.
fs::path weights_of(const fs::path& init) {
  std::error_code none;
  for (const auto* inner : {".", "ckpt/last"})
    if (const auto file = fs::canonical(init / inner / "model.safetensors", none); !none)
      return file;
  return init;
}

std::string text_of_file(const fs::path& file, const std::string& digest) {
  return fmt::format("{} {}\n", file.filename().string(), digest);
}

// Digests of what paths lead to, "" where that cannot be read.
class PathContents {
 public:
  virtual ~PathContents() = default;
  virtual std::string file(const fs::path& path) const = 0;
  // A line of each file in a folder that counts; "" where the path is none.
  virtual std::string folder(const fs::path& path, const Block& options) const = 0;
  virtual std::string weights(const fs::path& init) const = 0;

  std::string file_or_folder(const fs::path& path, const Block& options) const {
    const auto text = folder(path, options);
    return text.empty() ? file(path) : sha256(text);
  }
};

class ContentsNow : public PathContents {
 public:
  explicit ContentsNow(fs::path runs = {}) : runs_(std::move(runs)) {}
  std::string file(const fs::path& path) const override { return digest_now(path, runs_); }
  std::string folder(const fs::path& path, const Block& options) const override {
    std::error_code none;
    const auto* reads = dynamic_cast<const ReadsFolder*>(&options);
    if (!reads || !fs::is_directory(path, none)) return "";
    std::string text;
    try {
      for (const auto& one : reads->files_in(path)) text += text_of_file(one, file(one));
    } catch (const std::runtime_error&) {  // damaged; opening it says what is wrong
    }
    return text;
  }
  std::string weights(const fs::path& init) const override { return file(weights_of(init)); }

 private:
  fs::path runs_;
};

// What a run was made with: as its manifest says, what that does not name as it is now.
class ContentsThen : public PathContents {
 public:
  explicit ContentsThen(const ManifestJson& manifest) {
    if (!manifest.is_object()) return;
    for (const auto& file : manifest.value("data", ManifestJson::array()))
      known_.emplace_back(file.at("path").get<std::string>(), file.at("sha256").get<std::string>());
  }
  std::string file(const fs::path& path) const override {
    for (const auto& [known, digest] : known_)
      if (known == path) return digest;
    return now_.file(path);
  }
  std::string folder(const fs::path& path, const Block& options) const override {
    std::string text;
    for (const auto& [known, digest] : known_)
      if (known.parent_path() == path) text += text_of_file(known, digest);
    return text.empty() ? now_.folder(path, options) : text;
  }
  std::string weights(const fs::path& init) const override {
    for (const auto& [known, digest] : known_)
      if (known.filename() == "model.safetensors" &&
          !known.lexically_relative(init).string().starts_with(".."))
        return digest;
    return now_.weights(init);
  }

 private:
  std::vector<std::pair<fs::path, std::string>> known_;
  ContentsNow now_;
};

void put_contents(ConfigNode& node, const std::function<std::string(const fs::path&)>& content) {
  if (!node.absolute.empty()) {
    const auto found = content(node.absolute);
    if (!found.empty()) node = write_text("sha256:" + found);
    return;
  }
  for (auto& item : node.items) put_contents(item, content);
  for (auto& [key, value] : node.entries) put_contents(value, content);
}

ConfigNode identity_by(const Experiment& experiment, const PathContents& contents) {
  auto one = resolved(experiment);
  Experiment defaults;
  write_block(defaults);  // derived defaults are filled in
  auto node = write_minimal(one, defaults);
  if (auto* data = node.find("data"))
    put_contents(*data, [&](const fs::path& path) {
      return contents.file_or_folder(path, one.data.options());
    });
  if (auto* init = node.find("init"))
    put_contents(*init, [&](const fs::path& path) { return contents.weights(path); });
  return node;
}

// "0123abcd-s7" of seed 7
bool is_name_of_seed(const std::string& name, int64_t seed) {
  constexpr size_t kHash = 8;
  return name.size() > kHash && name.substr(kHash) == fmt::format("-s{}", seed) &&
         std::all_of(name.begin(), name.begin() + kHash,
                     [](unsigned char c) { return std::isxdigit(c); });
}

// hash_of_run(), which a run made by this program keeps; "" where it has none.
std::string hash_kept_or_made(const fs::path& run) {
  static std::map<fs::path, std::string> known;  // a sweep asks for every point
  const auto [at, fresh] = known.emplace(run, "");
  if (!fresh) return at->second;
  const auto manifest = read_manifest(run);
  if (!made_by_run(manifest)) return "";
  const auto part = [&](const char* key) {
    return manifest.is_object() ? manifest.value(key, ManifestJson()) : ManifestJson();
  };
  const auto kept = part("config_hash"), code = part("code");
  if (kept.is_string() && !rest_differs(code) && kinds_that_differ(code).empty())
    return at->second = kept.get<std::string>();
  try {
    at->second = hash_of_run(run);
  } catch (const ConfigError&) {
  }
  return at->second;
}

}  // namespace

ConfigNode identity_of(const Experiment& experiment) {
  return identity_by(experiment, ContentsNow());
}

std::string run_hash(const Experiment& experiment, const fs::path& folder) {
  return config_hash(identity_by(experiment, ContentsNow(folder)));
}

std::string hash_of_run(const fs::path& run) {
  Experiment experiment;
  read_config(experiment, load_config(run / "config.yaml"));
  return config_hash(identity_by(experiment, ContentsThen(read_manifest(run))));
}

std::optional<fs::path> run_of_other_name(const fs::path& folder, const std::string& hash,
                                          int64_t seed) {
  std::vector<fs::path> found;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error);
       !error && entry != fs::directory_iterator(); entry.increment(error))
    if (const auto& path = entry->path(); is_name_of_seed(path.filename().string(), seed) &&
                                          is_run(path) && hash_kept_or_made(path) == hash)
      found.push_back(path);
  if (found.empty()) return std::nullopt;
  const auto rank = [](const fs::path& run) {
    const auto status = read_status(run);
    return std::pair(!status || status->state != RunState::kFinished, run);
  };
  return *std::min_element(found.begin(), found.end(),
                           [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
}

}  // namespace headlab
