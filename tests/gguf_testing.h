// GGUF files written field by field.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headlab::testing {

// A file as gguf.cpp describes it, field by field.
class GgufBytes {
 public:
  template <class T>
  GgufBytes& number(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  GgufBytes& text(const std::string& value) {
    number<uint64_t>(value.size());
    text_ += value;
    return *this;
  }
  GgufBytes& raw(const std::string& value) { return text_ += value, *this; }
  GgufBytes& begin(uint64_t tensors, uint64_t pairs) {
    return raw("GGUF").number<uint32_t>(3).number(tensors).number(pairs);
  }
  GgufBytes& tensor(const std::string& name, const std::vector<uint64_t>& dimensions, uint32_t type,
                    uint64_t offset) {
    text(name).number(static_cast<uint32_t>(dimensions.size()));
    for (const auto size : dimensions) number(size);
    return number(type).number(offset);
  }
  GgufBytes& align(size_t alignment = 32) {
    text_.resize((text_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  // A setting, of an array of texts or of numbers.
  GgufBytes& texts(const std::string& key, const std::vector<std::string>& values) {
    text(key).number<uint32_t>(9).number<uint32_t>(8).number<uint64_t>(values.size());
    for (const auto& value : values) text(value);
    return *this;
  }
  GgufBytes& numbers(const std::string& key, const std::vector<int32_t>& values) {
    text(key).number<uint32_t>(9).number<uint32_t>(5).number<uint64_t>(values.size());
    for (const auto value : values) number(value);
    return *this;
  }
  const std::string& all() const { return text_; }

 private:
  std::string text_;
};

}  // namespace headlab::testing
