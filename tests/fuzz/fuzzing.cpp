#include "tests/fuzz/fuzzing.h"

#include <fcntl.h>
#include <sanitizer/allocator_interface.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "core/config/config.h"
#include "core/errors.h"

namespace headlab::fuzzing {
namespace {

constexpr size_t kMegabyte = size_t{1} << 20;

std::atomic<size_t> largest{SIZE_MAX}, most_alive{SIZE_MAX};  // no limits outside parse()
std::atomic<int64_t> alive{0};

[[noreturn]] void end(const char* what, size_t number, size_t limit) {
  largest = most_alive = SIZE_MAX;  // the report allocates too
  std::fprintf(stderr, "==fuzzing== %s: %zu, allowed are %zu\n", what, number, limit);
  std::abort();
}

void on_malloc(const volatile void*, size_t size) {
  const size_t limit = largest, limit_of_all = most_alive;
  if (size > limit) end("bytes in one allocation", size, limit);
  const int64_t now = alive += static_cast<int64_t>(size);
  if (now > 0 && static_cast<size_t>(now) > limit_of_all)
    end("bytes alive at once", static_cast<size_t>(now), limit_of_all);
}

void on_free(const volatile void* pointer) {
  if (pointer != nullptr)
    alive -= static_cast<int64_t>(__sanitizer_get_allocated_size(const_cast<const void*>(pointer)));
}

const int hooked = __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);

// The limits of one call of parse().
class Limited {
 public:
  Limited(size_t bytes, size_t unpacked) {
    require(hooked > 0, "the allocator takes no hooks");
    alive = 0;
    largest = std::max(kMegabyte, 4 * bytes) + 2 * unpacked;
    most_alive = 64 * kMegabyte + 32 * bytes;
  }
  ~Limited() { largest = most_alive = SIZE_MAX; }
  Limited(const Limited&) = delete;
  Limited& operator=(const Limited&) = delete;
};

void check_refusal(const std::exception& error, std::string_view names) {
  if (std::string_view(error.what()).find(names) != std::string_view::npos) return;
  std::fprintf(stderr, "==fuzzing== does not name '%.*s': %s\n", static_cast<int>(names.size()),
               names.data(), error.what());
  std::abort();
}

}  // namespace

const std::filesystem::path& folder() {
  static const std::filesystem::path made = [] {
    std::string name = (std::filesystem::temp_directory_path() / "headlab-fuzz-XXXXXX").string();
    require(::mkdtemp(name.data()) != nullptr, "no scratch folder can be made");
    return std::filesystem::canonical(name);
  }();
  return made;
}

std::filesystem::path write(const std::string& name, std::string_view bytes) {
  auto path = folder() / name;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const ssize_t written = file < 0 ? -1 : ::write(file, bytes.data(), bytes.size());
  if (file >= 0) ::close(file);
  require(written == static_cast<ssize_t>(bytes.size()), "the scratch file cannot be written");
  return path;
}

std::vector<std::string_view> parts(std::string_view input, size_t count) {
  constexpr std::string_view kBetween = "\n%%\n";
  std::vector<std::string_view> all;
  while (all.size() + 1 < count) {
    const size_t end = std::min(input.find(kBetween), input.size());
    all.push_back(input.substr(0, end));
    input.remove_prefix(std::min(end + kBetween.size(), input.size()));
  }
  all.push_back(input);
  return all;
}

void parse(size_t bytes, std::string_view names, const std::function<void()>& work,
           size_t unpacked) {
  const Limited limited(bytes, unpacked);
  try {
    work();
  } catch (const ConfigError& error) {
    check_refusal(error, names);
  } catch (const DataError& error) {
    check_refusal(error, names);
  } catch (const RunError& error) {
    check_refusal(error, names);
  }
}

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "==fuzzing== %s\n", what);
  std::abort();
}

void touch(const void* data, size_t bytes) {
  const auto* byte = static_cast<const volatile unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) static_cast<void>(byte[i]);
}

}  // namespace headlab::fuzzing
