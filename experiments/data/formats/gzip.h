// gzip (RFC 1952), inflated as it comes. No torch in here.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace headlab {

bool is_gzip(std::string_view bytes);

// Gives `take` what the bytes hold, block by block, so that it can stop by an exception what grows
// beyond reason. DataError `name: ...` for bytes that are damaged, end too early, or are followed
// by others.
using TakeBlock = std::function<void(std::span<const uint8_t> block)>;
void inflate_gzip(std::string_view bytes, const std::string& name, const TakeBlock& take);

}  // namespace headlab
