#include "experiments/files/config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>

#include "experiments/files/git_lfs.h"

namespace headlab {
namespace fs = std::filesystem;

namespace {

constexpr size_t kMaxParents = 16;  // files that extend each other
constexpr size_t kMaxPath = 64;     // keys of an override

using Refuse = std::function<void(const std::string&)>;  // throws

std::string read_text(const fs::path& file, const Refuse& refuse) {
  errno = 0;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> in(std::fopen(file.c_str(), "rb"), &std::fclose);
  if (!in) refuse(fmt::format("cannot open: {}", std::strerror(errno)));
  std::string text(kMaxConfigBytes + 1, '\0');  // one more than parsing accepts
  text.resize(std::fread(text.data(), 1, text.size(), in.get()));
  if (std::ferror(in.get())) refuse(fmt::format("cannot read: {}", std::strerror(errno)));
  if (const auto complaint = git_lfs_complaint(text); !complaint.empty())
    refuse(std::string(complaint));
  return text;
}

// `shown` names the file in messages; `chain` holds the files that led here.
ConfigNode load_file(const fs::path& file, const std::string& shown, std::vector<fs::path> chain,
                     const Refuse& refuse) {
  std::error_code unreachable;  // then opening says why
  const fs::path self = fs::weakly_canonical(file, unreachable);
  if (std::find(chain.begin(), chain.end(), self) != chain.end()) {
    std::string circle;
    for (const fs::path& link : chain) circle += link.filename().string() + " -> ";
    refuse("extends itself: " + circle + self.filename().string());
  }
  chain.push_back(self);
  if (chain.size() > kMaxParents)
    refuse(fmt::format("more than {} files extend each other", kMaxParents));

  // A FIFO may give a config (`<(...)`), but no parent that a file names.
  if (chain.size() > 1 && fs::exists(file, unreachable) && !fs::is_regular_file(file, unreachable))
    refuse("is no regular file");
  const std::string text = read_text(file, refuse);
  const fs::path directory = fs::absolute(file).parent_path();
  ConfigNode node = parse_config(text, shown, directory);
  const auto extends = std::find_if(node.entries.begin(), node.entries.end(),
                                    [](const auto& entry) { return entry.first == "extends"; });
  if (extends == node.entries.end()) return node;
  const ConfigNode parent = std::move(extends->second);
  node.entries.erase(extends);
  if (parent.kind != ConfigNode::Kind::kScalar || parent.text.empty()) {
    raise_problem(parent.place, "extends", "must be the path of one file");
  }
  const std::string parent_shown =
      (fs::path(shown).parent_path() / parent.text).lexically_normal().string();
  return merge_config(load_file(directory / parent.text, parent_shown, std::move(chain),
                                [&](const std::string& what) {
                                  raise_problem(parent.place, "extends",
                                                parent_shown + ": " + what);
                                }),
                      node);
}

std::vector<std::string> split_keys(const std::string& path) {
  std::vector<std::string> keys(1);
  for (char c : path) {
    if (c == '.') {
      keys.emplace_back();
    } else {
      keys.back() += c;
    }
  }
  return keys;
}

void check_keys(const std::vector<std::string>& keys, const std::string& path, const Place& place) {
  if (std::find(keys.begin(), keys.end(), "") != keys.end())
    raise_problem(place, path, "has an empty key; write a.b.c=value");
  if (keys.size() > kMaxPath)
    raise_problem(place, path, fmt::format("nested more than {} deep", kMaxPath));
}

const char* noun(const ConfigNode& node) {
  return node.kind == ConfigNode::Kind::kSequence ? "a list" : "a plain value";
}

// Adds `a.b.c=value` to the tree of overrides; `config` is what they will be merged over.
void add_override(ConfigNode& tree, const ConfigNode& config, const std::string& text) {
  const Place place{"override", 0, 0, fs::current_path()};
  const size_t equals = text.find('=');
  if (equals == std::string::npos) raise_problem(place, text, "must be written a.b.c=value");
  const std::string path = text.substr(0, equals);
  check_keys(split_keys(path), path, place);
  add_setting(tree, config, path, parse_value(text.substr(equals + 1), place, path), place);
}

}  // namespace

ConfigNode merge_config(const ConfigNode& base, const ConfigNode& over) {
  if (base.kind != ConfigNode::Kind::kMapping || over.kind != ConfigNode::Kind::kMapping) {
    return over;
  }
  const ConfigNode *old_kind = base.find("kind"), *new_kind = over.find("kind");
  if (old_kind && new_kind && old_kind->text != new_kind->text) return over;
  ConfigNode merged = base;
  // A mapping that an override only passes through stays where the file has it.
  if (over.place.line > 0) {
    merged.place = over.place;
    merged.key_line = over.key_line, merged.key_column = over.key_column;
  }
  for (const auto& [key, value] : over.entries) {
    const ConfigNode* old = base.find(key);
    merged.set(key, old ? merge_config(*old, value) : value);
  }
  return merged;
}

void add_setting(ConfigNode& tree, const ConfigNode& config, const std::string& path,
                 ConfigNode value, const Place& place) {
  const std::vector<std::string> keys = split_keys(path);
  check_keys(keys, path, place);
  const ConfigNode* written = &config;  // null once the path leaves what is written
  ConfigNode* over = &tree;
  std::string parent;
  for (size_t i = 0; i + 1 < keys.size(); ++i) {
    parent += (i ? "." : "") + keys[i];
    if (written) written = written->find(keys[i]);
    const ConfigNode* standing = over->find(keys[i]);
    const ConfigNode* holder = standing ? standing : written;
    if (holder && holder->kind != ConfigNode::Kind::kMapping &&
        holder->kind != ConfigNode::Kind::kNull) {
      raise_problem(place, path,
                    fmt::format("'{}' is {}, not a mapping; write {}={{{}: ...}}", parent,
                                noun(*holder), parent, keys[i + 1]));
    }
    if (!standing || standing->kind != ConfigNode::Kind::kMapping) {
      ConfigNode mapping;
      mapping.place = {place.file, 0, 0, place.base};  // it is only passed through
      mapping.key_line = place.line, mapping.key_column = place.column;
      over->set(keys[i], std::move(mapping));
    }
    over = over->find(keys[i]);
  }
  const ConfigNode* before = over->find(keys.back());
  over->set(keys.back(), before ? merge_config(*before, value) : std::move(value));
}

ConfigNode override_config(const ConfigNode& config, const std::vector<std::string>& overrides) {
  ConfigNode tree;
  for (const std::string& text : overrides) add_override(tree, config, text);
  return merge_config(config, tree);
}

ConfigNode load_config(const fs::path& file, const std::vector<std::string>& overrides) {
  const ConfigNode config = load_file(file, file.string(), {}, [&](const std::string& what) {
    throw ConfigError(file.string() + ": " + what);
  });
  return override_config(config, overrides);
}

}  // namespace headlab
