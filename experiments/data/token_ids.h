// Ids of a text, each in as few bytes as its vocabulary takes, in memory or in a mapped file.
#pragma once

#include <memory>
#include <string_view>

#include "experiments/data/formats/token_files.h"

namespace headlab {

// Bytes of an id: 1, 2 or 4.
int64_t id_width(int64_t vocabulary);

struct TokenIds {
  TokenSpan span;
  std::shared_ptr<const void> memory;  // that it lies in

  // Of bytes that are aligned to the ids.
  static TokenIds in(std::string_view bytes, int64_t width, std::shared_ptr<const void> memory);

  int64_t size() const;
  TokenIds part(int64_t first, int64_t count) const;
  void copy(int64_t first, int64_t count, int64_t* to) const;
};

}  // namespace headlab
