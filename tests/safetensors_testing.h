// Pieces of safetensors files, and a process that may not have everything.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>

#include "experiments/files/safetensors.h"
#include "tests/catch.h"

namespace headlab::testing {

// Sets a soft resource limit while it lives.
struct Limit {
  Limit(decltype(RLIMIT_AS) what, rlim_t value) : resource(what) {
    REQUIRE(::getrlimit(resource, &before) == 0);
    rlimit now = before;
    now.rlim_cur = std::min(value, before.rlim_max);
    REQUIRE(::setrlimit(resource, &now) == 0);
  }
  ~Limit() { ::setrlimit(resource, &before); }
  decltype(RLIMIT_AS) resource;
  rlimit before{};
};

inline std::string length_prefix(uint64_t length) {
  std::string prefix(sizeof length, '\0');
  std::memcpy(prefix.data(), &length, sizeof length);
  return prefix;
}

inline std::string bytes_of(const TensorEntry& entry) {
  return {reinterpret_cast<const char*>(entry.data), entry.bytes};
}

}  // namespace headlab::testing
