// H5Dataset: rows in and out, texts, dimension scales, and where the bytes lie.
#include <fmt/format.h>
#include <hdf5_hl.h>

#include <algorithm>
#include <stdexcept>

#include "core/errors.h"
#include "experiments/files/h5.h"
#include "experiments/files/h5_detail.h"

namespace headlab {

H5Extent H5Dataset::extent() const {
  const H5Handle space(H5Dget_space(id_.get()), H5Sclose);
  const int rank = space.valid() ? H5Sget_simple_extent_ndims(space.get()) : -1;
  if (rank < 0) fail("cannot read the extent");
  H5Extent extent(rank);
  if (rank > 0) H5Sget_simple_extent_dims(space.get(), extent.data(), nullptr);
  return extent;
}

hsize_t H5Dataset::rows() const {
  const H5Extent all = extent();
  if (all.empty()) throw RunError(where() + ": is a scalar, not rows");
  return all[0];
}

std::optional<H5Type> H5Dataset::type() const {
  const H5Handle type(H5Dget_type(id_.get()), H5Tclose);
  if (!type.valid()) fail("cannot read the type");
  if (H5Tis_variable_str(type.get()) > 0) return H5Type::kText;
  for (const H5Type known :
       {H5Type::kU8, H5Type::kU16, H5Type::kI32, H5Type::kI64, H5Type::kF32, H5Type::kF64}) {
    if (H5Tequal(type.get(), stored_type(known)) > 0) return known;
  }
  return std::nullopt;
}

void H5Dataset::require_values(size_t given, const H5Extent& extent) const {
  if (const hsize_t wanted = element_count(extent); given != wanted)
    throw std::logic_error(fmt::format("{}: {} values given, {} wanted", where(), given, wanted));
}

void H5Dataset::write_all(H5Type type, const void* values, size_t elements) {
  require_values(elements, extent());
  if (H5Dwrite(id_.get(), native_type(type), H5S_ALL, H5S_ALL, H5P_DEFAULT, values) < 0)
    fail("cannot write");
}

std::pair<H5Handle, H5Handle> H5Dataset::block_spaces(const H5Extent& start,
                                                      const H5Extent& count) const {
  H5Handle file(H5Dget_space(id_.get()), H5Sclose);
  const int rank = static_cast<int>(count.size());
  if (H5Sget_simple_extent_ndims(file.get()) != rank || start.size() != count.size())
    throw std::logic_error(fmt::format("{}: a block of {} axes does not fit", where(), rank));
  H5Handle memory(rank == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(rank, count.data(), nullptr),
                  H5Sclose);
  if (rank > 0 && H5Sselect_hyperslab(file.get(), H5S_SELECT_SET, start.data(), nullptr,
                                      count.data(), nullptr) < 0)
    fail("cannot choose a block");
  return {std::move(file), std::move(memory)};
}

void H5Dataset::write_block(const H5Extent& start, const H5Extent& count, H5Type type,
                            const void* values, size_t elements) {
  require_values(elements, count);
  const auto [file, memory] = block_spaces(start, count);
  if (H5Dwrite(id_.get(), native_type(type), memory.get(), file.get(), H5P_DEFAULT, values) < 0)
    fail("cannot write");
}

void H5Dataset::append_rows(H5Type type, const void* values, size_t elements) {
  H5Extent count = extent(), start(count.size(), 0);
  if (count.empty()) throw std::logic_error(where() + ": a scalar does not grow");
  start[0] = std::exchange(count[0], 1);
  const hsize_t row = element_count(count);
  if (row == 0 || elements % row != 0) {
    throw std::logic_error(where() + ": " + std::to_string(elements) + " values are not rows of " +
                           std::to_string(row));
  }
  count[0] = elements / row;
  H5Extent grown = count;
  grown[0] += start[0];
  if (H5Dset_extent(id_.get(), grown.data()) < 0) fail("cannot grow");
  write_block(start, count, type, values, elements);
}

void H5Dataset::read_block(const H5Extent& start, const H5Extent& count, H5Type type,
                           void* values) const {
  if (element_count(count) == 0) return;
  const auto [file, memory] = block_spaces(start, count);
  if (H5Dread(id_.get(), native_type(type), memory.get(), file.get(), H5P_DEFAULT, values) < 0)
    fail("cannot read");
}

void H5Dataset::require_backed(hsize_t elements, H5Type type) const {
  // Deflate packs at most 1032 to 1; a megabyte for what was never written and reads as fill.
  hsize_t bytes = 0, size = 0;
  H5Fget_filesize(file_->file.get(), &size);
  if (__builtin_mul_overflow(elements, h5_size(type), &bytes) || bytes / 1032 > size + 1000) {
    throw RunError(where() + ": claims more values than a file of " + std::to_string(size) +
                   " bytes can hold");
  }
}

void H5Dataset::write_text(const std::vector<std::string>& texts) {
  require_thawed("writing texts");
  if (texts.size() != element_count(extent())) {
    throw std::logic_error(where() + ": the number of texts does not fit");
  }
  const auto values = c_strings(where(), texts);
  if (H5Dwrite(id_.get(), text_type().get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0) {
    fail("cannot write");
  }
}

std::vector<std::string> H5Dataset::read_text() const {
  if (type() != H5Type::kText) throw RunError(where() + ": does not hold texts");
  const hsize_t count = element_count(extent());
  require_backed(count, H5Type::kText);
  const H5Handle type = text_type(), space(H5Dget_space(id_.get()), H5Sclose);
  std::vector<char*> values(count, nullptr);
  if (H5Dread(id_.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0) {
    fail("cannot read");
  }
  std::vector<std::string> texts;
  texts.reserve(values.size());
  for (const char* value : values) texts.emplace_back(value ? value : "");
  H5Dvlen_reclaim(type.get(), space.get(), H5P_DEFAULT, values.data());
  return texts;
}

void H5Dataset::truncate(hsize_t rows) {
  H5Extent cut = extent();
  if (cut.empty() || rows > cut[0]) {
    throw std::logic_error(where() + ": cannot be cut to " + std::to_string(rows) + " rows");
  }
  if (rows == cut[0]) return;
  require_thawed("cutting rows");
  cut[0] = rows;
  if (H5Dset_extent(id_.get(), cut.data()) < 0) fail("cannot cut rows");
}

void H5Dataset::refresh() {
  if (H5Drefresh(id_.get()) < 0) fail("cannot refresh");
}

void H5Dataset::make_scale(const std::string& name) {
  require_thawed("making a dimension scale");
  if (H5DSset_scale(id_.get(), name.c_str()) < 0) fail("cannot become a dimension scale");
}

void H5Dataset::attach_scale(unsigned axis, const H5Dataset& scale) {
  require_thawed("attaching a dimension scale");
  if (H5DSattach_scale(id_.get(), scale.id_.get(), axis) < 0) {
    fail("cannot attach the dimension scale " + scale.path());
  }
}

bool H5Dataset::is_scale() const {
  const htri_t scale = H5DSis_scale(id_.get());
  if (scale < 0) fail("is damaged: its attributes cannot be read");
  return scale > 0;
}

bool H5Dataset::grows() const {
  const H5Handle space(H5Dget_space(id_.get()), H5Sclose);
  H5Extent limit(extent().size());
  if (limit.empty()) return false;
  H5Sget_simple_extent_dims(space.get(), nullptr, limit.data());
  return limit[0] == H5S_UNLIMITED;
}

hsize_t H5Dataset::storage_size() const { return H5Dget_storage_size(id_.get()); }

H5Extent H5Dataset::chunk_extent() const {
  const H5Handle made(H5Dget_create_plist(id_.get()), H5Pclose);
  if (!made.valid()) fail("cannot read how it is stored");
  H5Extent chunk = extent();
  if (H5Pget_layout(made.get()) == H5D_CHUNKED)
    H5Pget_chunk(made.get(), static_cast<int>(chunk.size()), chunk.data());
  return chunk;
}

void H5Dataset::each_chunk_of(hsize_t row,
                              const std::function<void(const H5Extent&)>& visit) const {
  const H5Extent all = extent(), chunk = chunk_extent();
  H5Extent grid(all.size(), 1), start(all.size());
  for (size_t a = 1; a < all.size(); ++a) grid[a] = (all[a] + chunk[a] - 1) / chunk[a];
  const hsize_t chunks = element_count(grid);
  hsize_t size = 0;
  H5Fget_filesize(file_->file.get(), &size);
  if (chunks > size) {
    throw RunError(where() + ": claims more chunks than a file of " + std::to_string(size) +
                   " bytes can hold");
  }
  for (hsize_t n = 0; n < chunks; ++n) {
    hsize_t rest = n;
    for (size_t a = all.size(); a-- > 1; rest /= grid[a]) start[a] = rest % grid[a] * chunk[a];
    if (!start.empty()) start[0] = row;
    visit(start);
  }
}

void H5Dataset::check_row(hsize_t row) const {
  const std::optional<H5Type> kind = type();
  if (!kind || kind == H5Type::kText) return;
  const H5Extent all = extent(), chunk = chunk_extent();
  H5Extent count(chunk);
  count[0] = 1;
  for (size_t a = 1; a < all.size(); ++a) count[a] = std::min(chunk[a], all[a]);
  require_backed(element_count(count), *kind);
  std::vector<std::byte> values(element_count(count) * h5_size(*kind));
  each_chunk_of(row, [&](const H5Extent& start) {
    for (size_t a = 1; a < all.size(); ++a) count[a] = std::min(chunk[a], all[a] - start[a]);
    read_block(start, count, *kind, values.data());
  });
}

hsize_t H5Dataset::row_end(hsize_t row) const {
  const H5Handle made(H5Dget_create_plist(id_.get()), H5Pclose);
  if (!made.valid()) fail("cannot read how it is stored");
  if (H5Pget_layout(made.get()) != H5D_CHUNKED) {
    const haddr_t offset = H5Dget_offset(id_.get());
    return offset == HADDR_UNDEF ? 0 : offset + storage_size();
  }
  const H5Extent chunk = chunk_extent();
  hsize_t end = 0;
  each_chunk_of(row, [&](H5Extent start) {
    start[0] = row / chunk[0] * chunk[0];
    unsigned filters = 0;
    haddr_t address = HADDR_UNDEF;
    hsize_t size = 0;
    if (H5Dget_chunk_info_by_coord(id_.get(), start.data(), &filters, &address, &size) < 0)
      fail("cannot find a chunk");
    if (address != HADDR_UNDEF) end = std::max(end, address + size);
  });
  return end;
}

}  // namespace headlab
