#include "experiments/files/h5.h"

#include <algorithm>
#include <stdexcept>

#include "core/errors.h"
#include "experiments/files/h5_detail.h"

namespace headlab {

namespace {

// The stack's innermost entry says what really happened; of a failed system call, its message.
std::string innermost_error() {
  std::string text;
  const auto first = [](unsigned n, const H5E_error2_t* error, void* out) -> herr_t {
    if (n == 0 && error->desc) *static_cast<std::string*>(out) = error->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, first, &text);
  H5Eclear2(H5E_DEFAULT);
  constexpr std::string_view kSystem = "error message = '";
  if (const size_t at = text.find(kSystem); at != std::string::npos) {
    const size_t begin = at + kSystem.size();
    text = text.substr(begin, text.find('\'', begin) - begin);
  }
  return text.empty() ? "no reason given" : text;
}

// A soft, external or user-defined link may lead anywhere. headlab writes none.
[[noreturn]] void refuse_link(const std::string& where, const std::string& name) {
  throw RunError(where + ": " + name +
                 " is a link to what lies elsewhere, which no log of headlab has; ask its sender "
                 "for the log that headlab wrote");
}

// RunError for a dataset whose numbers lie in other files, or which a plugin would have to unpack.
void require_own_storage(const std::string& where, const H5Handle& id) {
  const auto refuse = [&](const std::string& what) {
    throw RunError(where + ": " + what +
                   ", which no log of headlab does; ask its sender for the log that headlab wrote");
  };
  const H5Handle made(H5Dget_create_plist(id.get()), H5Pclose);
  if (!made.valid()) fail_at(where, "cannot read how it is stored");
  if (H5Pget_layout(made.get()) == H5D_VIRTUAL)
    refuse("takes its numbers from other files (a virtual dataset)");
  if (H5Pget_external_count(made.get()) > 0)
    refuse("takes its numbers from another file (external storage)");
  for (int n = 0; n < H5Pget_nfilters(made.get()); ++n) {
    size_t values = 0;
    unsigned flags = 0, settings = 0;
    const H5Z_filter_t filter = H5Pget_filter2(made.get(), static_cast<unsigned>(n), &flags,
                                               &values, nullptr, 0, nullptr, &settings);
    if (filter >= H5Z_FILTER_RESERVED)
      refuse("needs the plugin of filter " + std::to_string(filter) + " to unpack its numbers");
  }
}

// The first component of `a/b/c` and the rest.
std::pair<std::string, std::string> split_path(const std::string& path) {
  const size_t slash = path.find('/');
  if (slash == std::string::npos) return {path, ""};
  return {path.substr(0, slash), path.substr(slash + 1)};
}

}  // namespace

void fail_at(const std::string& where, const std::string& what) {
  throw RunError(where + ": " + what + ": " + innermost_error());
}

hid_t native_type(H5Type type) {
  const hid_t types[] = {H5T_NATIVE_UINT8, H5T_NATIVE_UINT16, H5T_NATIVE_INT32,
                         H5T_NATIVE_INT64, H5T_NATIVE_FLOAT,  H5T_NATIVE_DOUBLE};
  if (type == H5Type::kText) throw std::logic_error("texts have no native HDF5 type");
  return types[static_cast<int>(type)];
}

hid_t stored_type(H5Type type) {
  const hid_t types[] = {H5T_STD_U8LE,  H5T_STD_U16LE,  H5T_STD_I32LE,
                         H5T_STD_I64LE, H5T_IEEE_F32LE, H5T_IEEE_F64LE};
  if (type == H5Type::kText) throw std::logic_error("texts have no stored number type");
  return types[static_cast<int>(type)];
}

H5Handle text_type() {
  H5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), H5T_VARIABLE);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

std::vector<const char*> c_strings(const std::string& where, std::span<const std::string> texts) {
  std::vector<const char*> pointers;
  pointers.reserve(texts.size());
  for (const std::string& text : texts) {
    // HDF5 would end the text there without a word.
    if (text.find('\0') != std::string::npos) {
      throw RunError(where + ": a text with a zero byte cannot be stored");
    }
    pointers.push_back(text.c_str());
  }
  return pointers;
}

size_t h5_size(H5Type type) {
  return type == H5Type::kText ? sizeof(char*) : H5Tget_size(native_type(type));
}

hsize_t element_count(const H5Extent& extent) {
  hsize_t count = 1;
  for (const hsize_t n : extent) {
    if (__builtin_mul_overflow(count, n, &count)) {
      throw RunError("an HDF5 extent has more elements than can be counted");
    }
  }
  return count;
}

H5Handle& H5Handle::operator=(H5Handle&& other) noexcept {
  if (this != &other) {
    reset();
    id_ = std::exchange(other.id_, H5I_INVALID_HID);
    close_ = other.close_;
  }
  return *this;
}

void H5Handle::reset() {
  if (id_ >= 0) close_(std::exchange(id_, H5I_INVALID_HID));
}

H5Node::H5Node(std::shared_ptr<H5FileState> file, H5Handle id, std::string path)
    : file_(std::move(file)), id_(std::move(id)), path_(std::move(path)) {}

std::string H5Node::where() const { return file_->path.string() + ": " + path_; }

void H5Node::fail(const std::string& what) const { fail_at(where(), what); }

void H5Node::require_thawed(const char* action) const {
  if (file_->frozen) {
    throw std::logic_error(where() + ": " + action +
                           " is not allowed once SWMR writing has started");
  }
}

bool H5Node::has_attribute(const std::string& name) const {
  const htri_t there = H5Aexists(id_.get(), name.c_str());
  if (there < 0) fail("is damaged: its attributes cannot be looked through");
  return there > 0;
}

void H5Node::set_attribute(const std::string& name, hid_t stored, hid_t given,
                           const H5Handle& space, const void* values) {
  require_thawed("setting an attribute");
  if (has_attribute(name)) H5Adelete(id_.get(), name.c_str());
  const H5Handle attribute(
      H5Acreate2(id_.get(), name.c_str(), stored, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  if (!attribute.valid() || H5Awrite(attribute.get(), given, values) < 0)
    fail("cannot write attribute " + name);
}

void H5Node::set_text(const std::string& name, const std::string& text) {
  const H5Handle type = text_type(), space(H5Screate(H5S_SCALAR), H5Sclose);
  set_attribute(name, type.get(), type.get(), space, c_strings(where(), {&text, 1}).data());
}

void H5Node::set_array(const std::string& name, H5Type type, const void* values, size_t count) {
  const hsize_t extent = count;
  const H5Handle space(H5Screate_simple(1, &extent, nullptr), H5Sclose);
  set_attribute(name, stored_type(type), native_type(type), space, values);
}

H5Handle H5Node::attribute(const std::string& name) const {
  if (!has_attribute(name)) throw RunError(where() + ": has no attribute " + name);
  H5Handle attribute(H5Aopen(id_.get(), name.c_str(), H5P_DEFAULT), H5Aclose);
  if (!attribute.valid()) fail("cannot open attribute " + name);
  return attribute;
}

std::string H5Node::text(const std::string& name) const {
  const H5Handle attribute = this->attribute(name);
  const H5Handle type(H5Aget_type(attribute.get()), H5Tclose);
  const H5Handle space(H5Aget_space(attribute.get()), H5Sclose);
  if (!type.valid() || !space.valid()) fail("cannot open attribute " + name);
  if (H5Tis_variable_str(type.get()) <= 0 || H5Sget_simple_extent_npoints(space.get()) != 1)
    throw RunError(where() + ": attribute " + name + " is not a text");
  char* value = nullptr;
  if (H5Aread(attribute.get(), text_type().get(), &value) < 0)
    fail("cannot read attribute " + name);
  const std::string text = value ? value : "";
  H5free_memory(value);
  return text;
}

double H5Node::number(const std::string& name) const {
  const H5Handle attribute = this->attribute(name);
  const H5Handle type(H5Aget_type(attribute.get()), H5Tclose);
  const H5Handle space(H5Aget_space(attribute.get()), H5Sclose);
  if (!type.valid() || !space.valid()) fail("cannot open attribute " + name);
  const H5T_class_t kind = H5Tget_class(type.get());
  if ((kind != H5T_INTEGER && kind != H5T_FLOAT) || H5Sget_simple_extent_npoints(space.get()) != 1)
    throw RunError(where() + ": attribute " + name + " is not a number");
  double value = 0;
  if (H5Aread(attribute.get(), H5T_NATIVE_DOUBLE, &value) < 0)
    fail("cannot read attribute " + name);
  return value;
}

std::string H5Group::child_place(const std::string& name) const {
  return where() + (path_ == "/" ? "" : "/") + name;
}

bool H5Group::has(const std::string& name, H5O_type_t type) const {
  const htri_t there = H5Lexists(id_.get(), name.c_str(), H5P_DEFAULT);
  if (there == 0) return false;
  H5L_info_t link;
  if (there < 0 || H5Lget_info(id_.get(), name.c_str(), &link, H5P_DEFAULT) < 0)
    fail("is damaged: its links cannot be looked through");
  if (link.type != H5L_TYPE_HARD) refuse_link(where(), name);
  H5O_info_t object;
  if (H5Oget_info_by_name2(id_.get(), name.c_str(), &object, H5O_INFO_BASIC, H5P_DEFAULT) < 0)
    fail_at(child_place(name), "is damaged: its header cannot be read");
  return object.type == type;
}

bool H5Group::has_group(const std::string& name) const {
  const auto [first, rest] = split_path(name);
  return has(first, H5O_TYPE_GROUP) && (rest.empty() || group(first).has_group(rest));
}

bool H5Group::has_dataset(const std::string& name) const {
  const auto [first, rest] = split_path(name);
  if (rest.empty()) return has(first, H5O_TYPE_DATASET);
  return has(first, H5O_TYPE_GROUP) && group(first).has_dataset(rest);
}

std::vector<std::string> H5Group::names() const {
  const H5Handle made(H5Gget_create_plist(id_.get()), H5Pclose);
  unsigned order = 0;
  H5Pget_link_creation_order(made.get(), &order);
  std::vector<std::string> names;
  const auto add = [](hid_t, const char* name, const H5L_info_t* link, void* out) -> herr_t {
    static_cast<std::vector<std::string>*>(out)->push_back(name);
    return link->type == H5L_TYPE_HARD ? 0 : 1;  // 1: that is the last one
  };
  const H5_index_t index = order & H5P_CRT_ORDER_INDEXED ? H5_INDEX_CRT_ORDER : H5_INDEX_NAME;
  const herr_t listed = H5Literate(id_.get(), index, H5_ITER_INC, nullptr, add, &names);
  if (listed < 0) fail("is damaged: its links cannot be listed");
  if (listed > 0) refuse_link(where(), names.back());
  return names;
}

H5Group H5Group::group(const std::string& name) const {
  const auto [first, rest] = split_path(name);
  if (!has(first, H5O_TYPE_GROUP)) throw RunError(where() + ": has no group " + first);
  H5Handle id(H5Gopen2(id_.get(), first.c_str(), H5P_DEFAULT), H5Gclose);
  if (!id.valid()) fail_at(child_place(first), "is damaged: the group cannot be opened");
  H5Group child(file_, std::move(id), (path_ == "/" ? "" : path_) + "/" + first);
  return rest.empty() ? std::move(child) : child.group(rest);
}

H5Group H5Group::make_group(const std::string& name) {
  const auto [first, rest] = split_path(name);
  if (!has(first, H5O_TYPE_GROUP)) {
    require_thawed("making a group");
    const H5Handle how(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
    H5Pset_link_creation_order(how.get(), kCreationOrder);
    H5Pset_attr_creation_order(how.get(), kCreationOrder);
    H5Pset_obj_track_times(how.get(), false);
    const H5Handle made(H5Gcreate2(id_.get(), first.c_str(), H5P_DEFAULT, how.get(), H5P_DEFAULT),
                        H5Gclose);
    if (!made.valid()) fail("cannot make group " + first);
  }
  H5Group child = group(first);
  return rest.empty() ? std::move(child) : child.make_group(rest);
}

H5Dataset H5Group::dataset(const std::string& name) const {
  const auto [first, rest] = split_path(name);
  if (!rest.empty()) return group(first).dataset(rest);
  if (!has(name, H5O_TYPE_DATASET)) throw RunError(where() + ": has no dataset " + name);
  H5Handle id(H5Dopen2(id_.get(), name.c_str(), H5P_DEFAULT), H5Dclose);
  if (!id.valid()) fail_at(child_place(name), "is damaged: the dataset cannot be opened");
  require_own_storage(child_place(name), id);
  return H5Dataset(file_, std::move(id), (path_ == "/" ? "" : path_) + "/" + name);
}

H5Dataset H5Group::make_dataset(const std::string& name, const H5Layout& layout) {
  require_thawed("making a dataset");
  const H5Handle how(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_attr_creation_order(how.get(), kCreationOrder);
  H5Pset_obj_track_times(how.get(), false);  // the same run makes the same bytes
  H5Extent limit = layout.extent;
  const int rank = static_cast<int>(limit.size());
  if (!layout.chunk.empty()) {
    limit[0] = H5S_UNLIMITED;
    H5Pset_chunk(how.get(), rank, layout.chunk.data());
    if (layout.compressed) {
      H5Pset_shuffle(how.get());
      H5Pset_deflate(how.get(), 1);
      H5Pset_fletcher32(how.get());
    }
  }
  if (layout.fill) H5Pset_fill_value(how.get(), H5T_NATIVE_DOUBLE, &*layout.fill);
  const H5Handle text = text_type();
  const hid_t type = layout.type == H5Type::kText ? text.get() : stored_type(layout.type);
  const H5Handle space(rank == 0 ? H5Screate(H5S_SCALAR)
                                 : H5Screate_simple(rank, layout.extent.data(), limit.data()),
                       H5Sclose);
  H5Handle id(
      H5Dcreate2(id_.get(), name.c_str(), type, space.get(), H5P_DEFAULT, how.get(), H5P_DEFAULT),
      H5Dclose);
  if (!id.valid()) fail("cannot make dataset " + name);
  return H5Dataset(file_, std::move(id), (path_ == "/" ? "" : path_) + "/" + name);
}

void H5Group::remove(const std::string& name) {
  require_thawed("removing an object");
  if (H5Ldelete(id_.get(), name.c_str(), H5P_DEFAULT) < 0) fail("cannot remove " + name);
}

}  // namespace headlab
