#include "experiments/system/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/config/config.h"
#include "core/errors.h"
#include "experiments/system/scratch_folder.h"
#include "experiments/text/shell_word.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

// What a run keeps, and a sweep or comparison; tests compare the names with those of
// scripts/python/headlab_log/output.py, and with what a run holds.
constexpr std::array<std::string_view, 12> kOfRun{
    "config.yaml", "manifest.json", "data.json", "code.patch", "status.json", "metrics.jsonl",
    "log.h5",      "log.h5.lock",   ".lock",     "ckpt",       "pruning.h5",  "pruning.csv"};
constexpr std::array<std::string_view, 17> kOfSweep{"points.tsv",
                                                    "points.json",
                                                    "sweep.yaml",
                                                    "summary.csv",
                                                    "summary.json",
                                                    "means.csv",
                                                    "configs",
                                                    "output",
                                                    "slurm",
                                                    "sweep.jobs",
                                                    "sweep.joblog",
                                                    "compare.yaml",
                                                    "compare.json",
                                                    "compare.md",
                                                    "compare.csv",
                                                    "compare.tex",
                                                    "surviving_heads.json"};
// A folder that holds one of these is one.
constexpr std::array<std::string_view, 5> kMarksOfRun{"config.yaml", "manifest.json", "status.json",
                                                      "metrics.jsonl", "log.h5"};
constexpr std::array<std::string_view, 2> kMarksOfSweep{"points.tsv", "compare.yaml"};
constexpr std::array<std::string_view, 2> kResults{"analysis", "ablation"};

template <class Names>
bool holds_one(const fs::path& folder, const Names& names) {
  std::error_code none;
  return std::ranges::any_of(
      names, [&](auto name) { return fs::exists(fs::symlink_status(folder / name, none)); });
}

bool is_one_of(const std::string& name, const auto& names) {
  return std::ranges::find(names, name) != names.end();
}

bool is_kept(const fs::path& folder, const std::string& name) {
  return ((is_one_of(name, kOfRun) || name.starts_with(".tmp-")) &&
          holds_one(folder, kMarksOfRun)) ||
         ((is_one_of(name, kOfSweep) || name.ends_with(".sbatch")) &&
          holds_one(folder, kMarksOfSweep));
}

// A result that another command left in a run.
bool is_result(const fs::path& path, const std::string& allowed) {
  const auto name = path.filename().string();
  return name.ends_with(".h5") && holds_one(path.parent_path(), kMarksOfRun) &&
         std::ranges::any_of(kResults,
                             [&](auto word) { return word != allowed && name.starts_with(word); });
}

// A path whose folder has no links, the last name as it is.
fs::path placed(const fs::path& path) {
  auto whole = fs::absolute(path);
  if (!whole.has_filename()) whole = whole.parent_path();  // written with a slash at its end
  const auto name = whole.filename();
  const bool is_name = name != "." && name != "..";
  std::error_code error;
  const auto folder = fs::weakly_canonical(is_name ? whole.parent_path() : whole, error);
  if (error) return whole;
  return is_name ? folder / name : folder;
}

// The number of one of this process's descriptors in /proc/self/fd; -1 of any other path.
int descriptor_at(const fs::path& path) {
  std::error_code none;
  const auto own = fs::canonical("/proc/self/fd", none);
  const auto name = path.filename().string();
  const bool number =
      !name.empty() && name.size() < 8 && name.find_first_not_of("0123456789") == name.npos;
  return !none && number && path.parent_path() == own ? std::stoi(name) : -1;
}

bool is_same(const fs::path& a, const fs::path& b) {
  std::error_code none;
  return fs::equivalent(a, b, none) && !none;
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  for (auto above = path.parent_path(); above.has_relative_path(); above = above.parent_path())
    if (is_same(above, folder)) return true;
  return false;
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace

void require_no_control(const std::string& name, const std::string& what) {
  if (has_control(name))
    throw ConfigError(
        fmt::format("{} {}: has a control character, such as a line feed; choose a name without",
                    what, shell_word(name)));
}

bool is_kept_by_run(const fs::path& path) {
  for (auto at = placed(path); at.has_relative_path(); at = at.parent_path())
    if (is_kept(at.parent_path(), at.filename().string())) return true;
  return false;
}

OutputFile::OutputFile(fs::path path, const std::vector<fs::path>& read, const std::string& results)
    : path_(std::move(path)) {
  constexpr int kMostLinks = 40;  // as of Linux
  require_no_control(path_.string(), "--out");
  if (path_.empty()) throw ConfigError("--out: names no file");
  if (!path_.has_filename()) refuse("it is a directory; name a file in it");
  std::error_code error;
  target_ = placed(path_);
  for (int links = 0; fs::is_symlink(fs::symlink_status(target_, error)); ++links) {
    descriptor_ = descriptor_at(target_);
    if (descriptor_ >= 0) break;
    if (links == kMostLinks) refuse("its links lead nowhere");
    const auto next = fs::read_symlink(target_, error);
    if (error) refuse(error.message());
    if (!next.has_filename()) refuse("it is a link to a directory; name a file in it");
    target_ = placed(target_.parent_path() / next);
  }
  const auto there = fs::status(target_, error);
  sent_ = descriptor_ >= 0 || fs::is_fifo(there) || fs::is_character_file(there);
  for (const auto& input : read) {
    if (input.empty()) continue;
    if (is_same(target_, input) || (!sent_ && placed(input) == target_))
      refuse("the command reads it; name another file");
    if (fs::exists(there) && fs::is_directory(input, error) && is_inside(target_, input))
      refuse(fmt::format("the command reads {}; name a file outside of it", input.string()));
  }
  if (fs::is_directory(there)) refuse("it is a directory; name a file in it");
  if (sent_) return;
  if (fs::exists(there) && !fs::is_regular_file(there)) refuse("it is no file; name another");
  if (is_kept_by_run(target_))
    refuse("a run or a sweep keeps a file of its own there; choose another name");
  if (fs::exists(there) && is_result(target_, results))
    refuse("it holds the results of another command; choose another name");
  if (!fs::is_directory(target_.parent_path(), error))
    refuse(fmt::format("there is no directory {}", path_.parent_path().string()));
  if (::access(target_.parent_path().c_str(), W_OK) != 0) refuse("its directory is read-only");
}

void OutputFile::write(const std::function<void(const fs::path& file)>& write) const {
  if (!sent_) return write(target_);
  const ScratchFolder passing;
  const auto file = passing.path() / "file";
  write(file);
  send(file);
}

void OutputFile::send(const fs::path& file) const {
  const auto refuse_by_number = [&] { refuse(std::generic_category().message(errno)); };
  std::fflush(stdout);
  const Descriptor from(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  const Descriptor to(descriptor_ >= 0 ? ::dup(descriptor_)
                                       : ::open(target_.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC));
  if (from.number() < 0 || to.number() < 0) refuse_by_number();
  std::vector<char> bytes(1 << 20);
  for (;;) {
    const auto size = ::read(from.number(), bytes.data(), bytes.size());
    if (size == 0) return;
    if (size < 0) refuse_by_number();
    for (ssize_t done = 0; done < size;) {
      const auto written =
          ::write(to.number(), bytes.data() + done, static_cast<size_t>(size - done));
      if (written < 0 && errno != EINTR) refuse_by_number();
      if (written > 0) done += written;
    }
  }
}

void OutputFile::refuse(const std::string& why) const {
  throw RunError(fmt::format("{}: cannot be written: {}", path_.string(), why));
}

void require_new_folder(const fs::path& path) {
  require_no_control(path.string(), "--out");
  const auto refuse = [&](const char* why) {
    throw RunError(fmt::format("{}: cannot be made: {}; choose another place", path.string(), why));
  };
  std::error_code error;
  const auto target = placed(path);
  if (fs::is_symlink(fs::symlink_status(target, error)) && !fs::exists(target, error))
    refuse("it is a link that leads nowhere");
  if (is_kept_by_run(fs::weakly_canonical(target, error)))
    refuse("a run or a sweep keeps files of its own there");
}

}  // namespace headlab
