#include "experiments/system/growing_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace headlab {

GrowingMemory::~GrowingMemory() {
  if (data_ != nullptr) ::munmap(data_, room_);
}

void GrowingMemory::append(std::string_view bytes) {
  constexpr size_t kLeast = 64 << 10;
  if (bytes.empty()) return;
  if (room_ - size_ < bytes.size()) {
    size_t room = std::max(room_, kLeast);
    while (room - size_ < bytes.size()) room *= 2;
    constexpr int kOwn = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* moved = data_ == nullptr ? ::mmap(nullptr, room, PROT_READ | PROT_WRITE, kOwn, -1, 0)
                                   : ::mremap(data_, room_, room, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<char*>(moved), room_ = room;
  }
  std::memcpy(data_ + size_, bytes.data(), bytes.size());
  size_ += bytes.size();
}

}  // namespace headlab
