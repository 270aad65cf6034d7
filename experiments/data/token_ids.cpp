#include "experiments/data/token_ids.h"

#include <algorithm>

namespace headlab {
namespace {

template <class Id>
TokenSpan ids_as(std::string_view bytes) {
  return std::span(reinterpret_cast<const Id*>(bytes.data()), bytes.size() / sizeof(Id));
}

}  // namespace

int64_t id_width(int64_t vocabulary) {
  return vocabulary <= 1 << 8 ? 1 : vocabulary <= 1 << 16 ? 2 : 4;
}

TokenIds TokenIds::in(std::string_view bytes, int64_t width, std::shared_ptr<const void> memory) {
  return {width == 1   ? ids_as<uint8_t>(bytes)
          : width == 2 ? ids_as<uint16_t>(bytes)
                       : ids_as<uint32_t>(bytes),
          std::move(memory)};
}

int64_t TokenIds::size() const {
  return std::visit([](const auto& ids) { return std::ssize(ids); }, span);
}

TokenIds TokenIds::part(int64_t first, int64_t count) const {
  return std::visit(
      [&](const auto& ids) -> TokenIds {
        return {ids.subspan(static_cast<size_t>(first), static_cast<size_t>(count)), memory};
      },
      span);
}

void TokenIds::copy(int64_t first, int64_t count, int64_t* to) const {
  std::visit([&](const auto& ids) { std::copy_n(ids.begin() + first, count, to); }, span);
}

}  // namespace headlab
