#include "experiments/logs/result_arrays.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "core/errors.h"
#include "experiments/files/h5.h"
#include "experiments/files/replacement_file.h"
#include "experiments/logs/log_table.h"
#include "experiments/system/host_name.h"
#include "experiments/system/signals.h"

namespace headlab {
namespace {

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

}  // namespace

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
                   const std::vector<LabelledGroup>& groups) {
  const auto target = std::filesystem::absolute(path);
  const auto making = unfinished_of(target);
  remove_unfinished_beside(target);
  try {
    const UnfinishedFile unfinished(making);
    auto file = H5File::create(making);
    auto root = file.root();
    describe_file(root, attributes, "finished");
    for (const auto& spec : groups) {
      auto group = root.make_group(spec.path);
      write_arrays(group, spec);
    }
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
