#include "experiments/files/new_folder.h"

#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "core/errors.h"
#include "experiments/files/replacement_file.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

// A path may be written with a slash at its end.
fs::path target_of(const fs::path& path) {
  const auto target = fs::weakly_canonical(path);
  return target.has_filename() ? target : target.parent_path();
}

}  // namespace

Removal::Removal(fs::path path) : path_(std::move(path)) {}

Removal::~Removal() {
  std::error_code none;
  fs::remove_all(path_, none);
}

NewFolder::NewFolder(const fs::path& path)
    : path_(path),
      target_(target_of(path)),
      making_(target_.parent_path() / (".tmp-" + target_.filename().string() + "-made")) {}

void NewFolder::commit() const {
  std::error_code error;
  fs::rename(making(), target_, error);  // takes the place of an empty folder
  if (error) throw RunError(fmt::format("{}: cannot be made: {}", path_.string(), error.message()));
  sync_directory(target_.parent_path());
}

}  // namespace headlab
