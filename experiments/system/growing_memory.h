// Bytes that become more and more and are never copied: pages move instead. What is not filled is
// not taken. No torch in here.
#pragma once

#include <cstddef>
#include <string_view>

namespace headlab {

class GrowingMemory {
 public:
  GrowingMemory() = default;
  GrowingMemory(const GrowingMemory&) = delete;
  GrowingMemory& operator=(const GrowingMemory&) = delete;
  ~GrowingMemory();

  void append(std::string_view bytes);  // std::bad_alloc
  std::string_view bytes() const { return {data_, size_}; }

 private:
  char* data_ = nullptr;
  size_t size_ = 0, room_ = 0;
};

}  // namespace headlab
