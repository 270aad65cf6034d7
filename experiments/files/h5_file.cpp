// HDF5 files as a whole: how they are created, opened, written through and closed.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/errors.h"
#include "experiments/files/git_lfs.h"
#include "experiments/files/h5_detail.h"
#include "experiments/files/regular_file.h"

namespace headlab {
namespace {

// At the end of the process HDF5 would close what is still open, an abandoned file too. This must
// be said before any other call.
const bool kNothingAtExit = H5dont_atexit() >= 0;

// HDF5 prints its error stack to stderr unless each thread says no.
void silence() {
  thread_local const bool silent = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
  static const bool no_plugins = H5PLset_loading_state(0) >= 0;  // a file must not load code
  (void)silent, (void)no_plugins;
}

H5Handle file_access(bool locked) {
  silence();
  H5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110);
  H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG);
  // Every flush walks all cached chunks. Few are kept: rows are appended, maps written once.
  H5Pset_cache(access.get(), 0, 31, 64 << 10, 1.0);
  if (!locked) H5Pset_file_locking(access.get(), false, true);
  return access;
}

// For a file whose writer died: its flags and its end do not count. Private properties of HDF5 1.10
// that h5clear uses.
H5Handle dead_access() {
  H5Handle access = file_access(false);
  const hbool_t yes = true;
  for (const char* property : {"clear_status_flags", "skip_eof_check"}) {
    if (H5Pexist(access.get(), property) > 0) H5Pset(access.get(), property, &yes);
  }
  return access;
}

// RunError for a pointer of Git LFS.
void refuse_pointer(const std::filesystem::path& path) {
  std::string text(1024, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(text.data(), std::ssize(text));
  text.resize(in.gcount());
  if (const auto complaint = git_lfs_complaint(text); !complaint.empty())
    throw RunError(path.string() + ": " + std::string(complaint));
}

}  // namespace

H5FileFlags h5_file_flags(const std::filesystem::path& path) {
  require_regular(path);
  std::ifstream in(path, std::ios::binary);
  std::array<unsigned char, 12> head{};
  in.read(reinterpret_cast<char*>(head.data()), head.size());
  if (!in && !in.eof()) throw RunError(path.string() + ": cannot be read: " + std::strerror(errno));
  refuse_pointer(path);
  constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
  H5FileFlags flags;
  flags.hdf5 =
      in.gcount() == static_cast<std::streamsize>(head.size()) &&
      std::equal(kSignature.begin(), kSignature.end(), head.begin(),
                 [](char a, unsigned char b) { return static_cast<unsigned char>(a) == b; });
  if (flags.hdf5 && head[8] >= 3) {  // older superblocks have no such flags
    flags.being_written = head[11] & 1;
    flags.swmr = head[11] & 4;
  }
  return flags;
}

H5File::H5File(const std::filesystem::path& path, hid_t id)
    : state_(std::make_shared<H5FileState>()) {
  if (id < 0) {
    refuse_pointer(path);
    fail_at(path.string(), "cannot be opened");
  }
  state_->path = path;
  state_->file = H5Handle(id, H5Fclose);
}

H5File H5File::create(const std::filesystem::path& path) {
  const H5Handle access = file_access(false);
  const H5Handle how(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  H5Pset_link_creation_order(how.get(), kCreationOrder);
  H5Pset_attr_creation_order(how.get(), kCreationOrder);
  H5Pset_obj_track_times(how.get(), false);
  // A file of its own: to cut one that is there would cut what a link of that name leads to.
  std::error_code none;
  const auto there = std::filesystem::symlink_status(path, none);
  if (std::filesystem::is_regular_file(there) || std::filesystem::is_symlink(there))
    std::filesystem::remove(path, none);
  return H5File(path, H5Fcreate(path.c_str(), H5F_ACC_EXCL, how.get(), access.get()));
}

// A file that is there already. RunError: it is no regular file, or may not be written in place.
H5File H5File::opened(const std::filesystem::path& path, unsigned flags, const H5Handle& access) {
  flags& H5F_ACC_RDWR ? require_writable(path) : require_regular(path);
  return H5File(path, H5Fopen(path.c_str(), flags, access.get()));
}

H5File H5File::open(const std::filesystem::path& path) {
  return opened(path, H5F_ACC_RDONLY, file_access(true));
}

H5File H5File::open_unlocked(const std::filesystem::path& path) {
  return opened(path, H5F_ACC_RDONLY, file_access(false));
}

H5File H5File::open_live(const std::filesystem::path& path) {
  const H5Handle access = file_access(true);
  // What the writer is just changing is read again, after a pause that doubles from 1 ns: at most
  // for a quarter of a second. (HDF5 would go on a hundred times, that is for ever.)
  H5Pset_metadata_read_attempts(access.get(), 28);
  return opened(path, H5F_ACC_RDONLY | H5F_ACC_SWMR_READ, access);
}

H5File H5File::edit(const std::filesystem::path& path) {
  return opened(path, H5F_ACC_RDWR, file_access(true));
}

H5File H5File::edit_unlocked(const std::filesystem::path& path) {
  return opened(path, H5F_ACC_RDWR, file_access(false));
}

H5File H5File::open_dead(const std::filesystem::path& path) {
  return opened(path, H5F_ACC_RDONLY, dead_access());
}

void H5File::recover(const std::filesystem::path& path) {
  H5File file = opened(path, H5F_ACC_RDWR, dead_access());
  if (H5Fincrement_filesize(file.state_->file.get(), 0) < 0) {
    fail_at(path.string(), "the end of the file cannot be set");
  }
  file.sync();
  file.close();
}

H5Group H5File::root() const {
  H5Handle id(H5Gopen2(state_->file.get(), "/", H5P_DEFAULT), H5Gclose);
  if (!id.valid()) fail_at(state_->path.string(), "the root group cannot be opened");
  return H5Group(state_, std::move(id), "/");
}

hsize_t H5File::end() const {
  haddr_t end = 0;
  if (H5Fget_eoa(state_->file.get(), &end) < 0)
    fail_at(state_->path.string(), "the end of the file is not known");
  return end;
}

void H5File::start_swmr() {
  if (H5Fstart_swmr_write(state_->file.get()) < 0) {
    fail_at(state_->path.string(), "SWMR writing cannot be started");
  }
  state_->frozen = true;
}

void H5File::flush() {
  if (H5Fflush(state_->file.get(), H5F_SCOPE_GLOBAL) < 0) {
    fail_at(state_->path.string(), "cannot be flushed");
  }
}

void H5File::sync() {
  flush();
  void* descriptor = nullptr;
  if (H5Fget_vfd_handle(state_->file.get(), H5P_DEFAULT, &descriptor) < 0) {
    fail_at(state_->path.string(), "has no file descriptor");
  }
  if (fsync(*static_cast<int*>(descriptor)) != 0) {
    throw RunError(state_->path.string() + ": cannot be synced: " + std::strerror(errno));
  }
}

void H5File::abandon() { state_->file.release(); }

void H5File::close() {
  // The identifier is given up first: a second attempt by the destructor would fail again.
  const hid_t id = state_->file.release();
  if (id >= 0 && H5Fclose(id) < 0) fail_at(state_->path.string(), "cannot be closed");
}

}  // namespace headlab
