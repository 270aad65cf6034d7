// What an unknown key was meant to be: a key nearby, one of another section, or what another tool
// calls a setting of ours.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/config/config_fields.h"

namespace headlab {
namespace {

// All keys that a file may write, by going through the fields and the forms of their values.
class KeyPaths {
 public:
  std::vector<KeyPath> found;

  void add_block(Block& block, const std::string& path, const std::string& kind) {
    for (const BlockField& field : fields_of(block)) {
      const std::string below = path.empty() ? field.name : path + '.' + field.name;
      add(below, kind);
      if (field.block) add_block(*field.block, below, kind);
      if (field.custom) {
        KeyForms forms(*this, below, kind);
        field.custom->forms(forms);
      }
    }
  }

 private:
  class KeyForms : public Forms {
   public:
    KeyForms(KeyPaths& paths, std::string path, std::string kind)
        : paths_(paths), path_(std::move(path)), kind_(std::move(kind)) {}
    void mapping(Block& block) override { paths_.add_block(block, path_, kind_); }
    void kind(const std::string& kind, Block& options, bool) override {
      paths_.add_block(options, path_, kind);
    }
    void kinds(const KindRegistry& registry, const std::string&) override {
      paths_.add_kinds(registry, path_);
    }

   private:
    KeyPaths& paths_;
    std::string path_, kind_;
  };

  void add(const std::string& path, const std::string& kind) {
    const auto same = std::find_if(found.begin(), found.end(),
                                   [&](const KeyPath& other) { return other.path == path; });
    KeyPath& key = same == found.end() ? found.emplace_back(KeyPath{path, {}}) : *same;
    if (!kind.empty() && std::find(key.kinds.begin(), key.kinds.end(), kind) == key.kinds.end())
      key.kinds.push_back(kind);
  }

  void add_kinds(const KindRegistry& registry, const std::string& path) {
    if (std::find(inside_.begin(), inside_.end(), &registry) != inside_.end()) return;
    inside_.push_back(&registry);  // kinds of the same family in its options would never end
    const auto names = registry.names();
    add(path + ".kind", "");
    for (const std::string& kind : names) add_block(*registry.options(kind), path, kind);
    inside_.pop_back();
    for (KeyPath& key : found)  // what all of them have is of no kind in particular
      if (key.path.starts_with(path + '.') && key.kinds == names) key.kinds.clear();
  }

  std::vector<const KindRegistry*> inside_;
};

std::string last_key(const std::string& path) { return path.substr(path.rfind('.') + 1); }
std::string block_of(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == path.npos ? "" : path.substr(0, dot);
}

// Keys of other sections that are called so, or that another tool calls so; else, where none nearby
// is meant, the nearest.
std::vector<KeyPath> keys_elsewhere(const std::string& key, Block& root, bool nearest) {
  const std::vector<KeyPath> all = key_paths(root);
  const OtherWords other_words = root.other_words();
  std::vector<KeyPath> called;
  std::vector<std::string> names;
  for (const KeyPath& known : all) {
    names.push_back(last_key(known.path));
    const bool other_word = std::any_of(
        other_words.begin(), other_words.end(),
        [&](const auto& word) { return word.first == key && word.second == known.path; });
    if (names.back() == key || other_word) called.push_back(known);
  }
  if (called.empty() && nearest) {
    if (const auto near = nearest_name(key, names))
      for (const KeyPath& known : all)
        if (last_key(known.path) == *near) called.push_back(known);
  }
  const auto depth = [](const KeyPath& k) { return std::count(k.path.begin(), k.path.end(), '.'); };
  std::stable_sort(called.begin(), called.end(),
                   [&](const KeyPath& a, const KeyPath& b) { return depth(a) < depth(b); });
  return called;
}

}  // namespace

std::string enumerated(const std::vector<std::string>& words, const std::string& last) {
  std::string text;
  for (size_t n = 0; n < words.size(); ++n)
    text += (n == 0 ? "" : n + 1 == words.size() ? ' ' + last + ' ' : ", ") + words[n];
  return text;
}

std::vector<KeyPath> key_paths(Block& root) {
  KeyPaths paths;
  paths.add_block(root, "", "");
  return std::move(paths.found);
}

std::string meant_instead(const std::string& key, const std::string& block,
                          const std::vector<std::string>& known, Block* root) {
  constexpr size_t kMost = 3;
  const std::string known_here = known.empty()
                                     ? "; none is known here"
                                     : fmt::format("; known are {}", fmt::join(known, ", "));
  std::vector<std::string> meant;
  if (const auto near = nearest_name(key, known)) meant.push_back('\'' + *near + '\'');
  const std::string here = block.empty() ? key : block + '.' + key;
  const auto others = root ? keys_elsewhere(key, *root, meant.empty()) : std::vector<KeyPath>{};
  for (const KeyPath& other : others) {
    if (other.path == here)  // of the block's other kinds
      return fmt::format("; kind {} has it{}", enumerated(other.kinds, "or"), known_here);
    const bool beside = block_of(other.path) == block;
    const std::string of_kind =
        other.kinds.size() == 1 && !beside ? " of kind " + other.kinds[0] : "";
    const std::string text =
        fmt::format("'{}'{}", beside ? last_key(other.path) : other.path, of_kind);
    if (std::find(meant.begin(), meant.end(), text) == meant.end()) meant.push_back(text);
  }
  if (meant.size() > kMost) meant.resize(kMost);
  return meant.empty() ? known_here : fmt::format("; did you mean {}?", enumerated(meant, "or"));
}

}  // namespace headlab
