// Thin RAII over the HDF5 1.10 C API: files, groups, datasets, attributes, dimension scales, SWMR.
//
// Every failure is a RunError "file: /object: what failed: HDF5's innermost message". A file and
// what was opened from it belong to the thread that opened the file (HDF5's error printing, which
// is silenced here, is a setting of each thread). No torch in here.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace headlab {

// The only element types: netCDF readers drop or crash on compound, enum, bool and fixed strings.
enum class H5Type { kU8, kU16, kI32, kI64, kF32, kF64, kText };

template <class T>
constexpr H5Type h5_type() {
  if constexpr (std::is_same_v<T, uint8_t>) return H5Type::kU8;
  if constexpr (std::is_same_v<T, uint16_t>) return H5Type::kU16;
  if constexpr (std::is_same_v<T, int32_t>) return H5Type::kI32;
  if constexpr (std::is_same_v<T, int64_t>) return H5Type::kI64;
  if constexpr (std::is_same_v<T, float>) return H5Type::kF32;
  if constexpr (std::is_same_v<T, double>) return H5Type::kF64;
}
size_t h5_size(H5Type type);  // bytes of an element; kText: of a pointer

using H5Extent = std::vector<hsize_t>;
hsize_t element_count(const H5Extent& extent);  // 1 for a scalar; throws RunError on overflow

// An HDF5 identifier that closes itself.
class H5Handle {
 public:
  using Close = herr_t (*)(hid_t);
  H5Handle() = default;
  H5Handle(hid_t id, Close close) : id_(id), close_(close) {}
  H5Handle(H5Handle&& other) noexcept
      : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  H5Handle& operator=(H5Handle&& other) noexcept;
  ~H5Handle() { reset(); }
  hid_t get() const { return id_; }
  bool valid() const { return id_ >= 0; }
  void reset();
  hid_t release() { return std::exchange(id_, H5I_INVALID_HID); }  // for who closes it himself

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};

// What the objects of one file share.
struct H5FileState;

// What groups and datasets share: a place and attributes.
class H5Node {
 public:
  const std::string& path() const { return path_; }  // "/heads/encoder/entropy"
  std::string where() const;                         // "log.h5: /heads/encoder/entropy"

  // Makes or replaces an attribute. Texts are variable-length UTF-8 scalars, numbers arrays of one
  // dimension (as netCDF writes them). std::logic_error once SWMR writing has started.
  void set_text(const std::string& name, const std::string& text);
  template <class T>
  void set_numbers(const std::string& name, std::span<const T> values) {
    set_array(name, h5_type<T>(), values.data(), values.size());
  }
  template <class T>
  void set_number(const std::string& name, T value) {
    set_array(name, h5_type<T>(), &value, 1);
  }
  bool has_attribute(const std::string& name) const;
  std::string text(const std::string& name) const;  // RunError: absent, or not a text
  double number(const std::string& name) const;     // the first; RunError: absent, or not a number

 protected:
  H5Node() = default;
  H5Node(std::shared_ptr<H5FileState> file, H5Handle id, std::string path);
  void set_array(const std::string& name, H5Type type, const void* values, size_t count);
  // Types of what is stored and of what is given.
  void set_attribute(const std::string& name, hid_t stored, hid_t given, const H5Handle& space,
                     const void* values);
  H5Handle attribute(const std::string& name) const;  // RunError: absent
  // std::logic_error when the file is being written under SWMR, where readers would see it half
  // done.
  void require_thawed(const char* action) const;
  [[noreturn]] void fail(const std::string& what) const;

  std::shared_ptr<H5FileState> file_;
  H5Handle id_;
  std::string path_;
};

// How a dataset is made.
struct H5Layout {
  H5Type type = H5Type::kF32;
  H5Extent extent = {};             // of the start; empty: a scalar
  H5Extent chunk = {};              // given: chunked, and axis 0 grows; empty: contiguous and fixed
  bool compressed = false;          // gzip 1 + shuffle + fletcher32
  std::optional<double> fill = {};  // the value of what was never written; default 0
};

class H5Dataset : public H5Node {
 public:
  H5Dataset() = default;
  H5Extent extent() const;
  std::optional<H5Type> type() const;  // none: a type that this wrapper does not write
  hsize_t rows() const;                // extent of axis 0; RunError for a scalar

  template <class T>
  void write(std::span<const T> values) {  // all of it
    write_all(h5_type<T>(), values.data(), values.size());
  }
  template <class T>
  void write_at(const H5Extent& start, const H5Extent& count, std::span<const T> values) {
    write_block(start, count, h5_type<T>(), values.data(), values.size());
  }
  template <class T>
  void append(std::span<const T> values) {  // whole rows at the end of axis 0
    append_rows(h5_type<T>(), values.data(), values.size());
  }
  void append_rows(H5Type type, const void* values, size_t elements);
  template <class T>
  std::vector<T> read() const {
    const H5Extent all = extent();
    return read_at<T>(H5Extent(all.size(), 0), all);
  }
  template <class T>
  std::vector<T> read_at(const H5Extent& start, const H5Extent& count) const {
    require_backed(element_count(count), h5_type<T>());
    std::vector<T> values(element_count(count));
    read_block(start, count, h5_type<T>(), values.data());
    return values;
  }
  // Texts live in a heap that SWMR readers cannot follow: only before SWMR writing starts.
  void write_text(const std::vector<std::string>& texts);
  std::vector<std::string> read_text() const;

  // Cuts axis 0; what a chunk held beyond is overwritten with the fill value. Not under SWMR.
  void truncate(hsize_t rows);
  void refresh();  // under SWMR reading: looks at the file again

  // Dimension scales: `step.make_scale("step"); loss.attach_scale(0, step);`
  void make_scale(const std::string& name);
  void attach_scale(unsigned axis, const H5Dataset& scale);
  bool is_scale() const;
  bool grows() const;  // axis 0 has no limit

  hsize_t storage_size() const;  // bytes in the file, after compression
  // Reads the chunks of one row and drops them. RunError: one of them cannot be read. HDF5 before
  // 1.14 finds where a chunk lies by walking through all before it; this takes as long in any row.
  void check_row(hsize_t row) const;
  // Where what is stored of one row ends in the file, in bytes; 0: nothing of it is stored.
  hsize_t row_end(hsize_t row) const;

 private:
  friend class H5Group;
  using H5Node::H5Node;
  void require_values(size_t given, const H5Extent& extent) const;  // else std::logic_error
  void write_all(H5Type type, const void* values, size_t elements);
  void write_block(const H5Extent& start, const H5Extent& count, H5Type type, const void* values,
                   size_t elements);
  // A block of the file's and as much memory. std::logic_error: it has other axes than the file.
  std::pair<H5Handle, H5Handle> block_spaces(const H5Extent& start, const H5Extent& count) const;
  void read_block(const H5Extent& start, const H5Extent& count, H5Type type, void* values) const;
  H5Extent chunk_extent() const;  // all of it where it is not stored in chunks
  // Calls with the place of each chunk that holds a part of a row.
  void each_chunk_of(hsize_t row, const std::function<void(const H5Extent&)>& visit) const;
  // RunError when the file is too small for so many values: damaged files claim anything.
  void require_backed(hsize_t elements, H5Type type) const;
};

class H5Group : public H5Node {
 public:
  H5Group() = default;
  std::vector<std::string> names() const;  // of groups and datasets, in order of creation
  bool has_group(const std::string& name) const;
  bool has_dataset(const std::string& name) const;
  H5Group group(const std::string& name) const;  // `a/b` descends; RunError: absent
  H5Group make_group(const std::string& name);   // creates what is missing of `a/b`
  H5Dataset dataset(const std::string& name) const;
  H5Dataset make_dataset(const std::string& name, const H5Layout& layout);
  void remove(const std::string& name);  // unlinks; the space is not given back

 private:
  friend class H5File;
  using H5Node::H5Node;
  std::string child_place(const std::string& name) const;  // as where() of what has this name
  // RunError: there is a link of this name, and what it leads to does not open.
  bool has(const std::string& name, H5O_type_t type) const;
};

// The superblock's first bytes, read without HDF5.
struct H5FileFlags {
  bool hdf5 = false;           // the signature is there
  bool being_written = false;  // a writer has it open, or died with it open
  bool swmr = false;           // that writer writes under SWMR: H5File::open_live reads it
};
H5FileFlags h5_file_flags(const std::filesystem::path& path);  // RunError: cannot be read

class H5File {
 public:
  // Replaces what is there. Unlocked, so that file systems without locks can have it: the caller
  // makes a file under a name that nobody else knows yet.
  static H5File create(const std::filesystem::path& path);
  static H5File open(const std::filesystem::path& path);       // to read
  static H5File open_live(const std::filesystem::path& path);  // to read beside a SWMR writer
  static H5File edit(const std::filesystem::path& path);       // to read and write
  // The same, without HDF5's own lock, which any reader may hold and some file systems refuse: for
  // a caller who has excluded other writers by a lock of his own.
  static H5File open_unlocked(const std::filesystem::path& path);
  static H5File edit_unlocked(const std::filesystem::path& path);
  // To read what a dead writer left, whatever its flags say; changes nothing.
  static H5File open_dead(const std::filesystem::path& path);
  // Makes a file readable whose writer died: clears its flags and sets its end (what
  // `h5clear -s --increment=0` does). The caller makes sure that the writer is dead.
  static void recover(const std::filesystem::path& path);

  H5Group root() const;
  // Where the file says that it ends: its bytes reach so far unless it was cut short afterwards.
  hsize_t end() const;
  // From here on only appending, overwriting inside the extent, flushing.
  void start_swmr();
  void flush();  // to the operating system
  void sync();   // and to the disk
  // Never closes it: after a failed write a close would mark it as whole. What was flushed can be
  // recovered, as after a kill.
  void abandon();
  void close();  // with what was opened from it; the destructor does it too, but cannot say why not

 private:
  H5File(const std::filesystem::path& path, hid_t id);
  static H5File opened(const std::filesystem::path& path, unsigned flags, const H5Handle& access);
  std::shared_ptr<H5FileState> state_;
};

}  // namespace headlab
