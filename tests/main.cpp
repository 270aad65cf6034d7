// The main() of every test program.
#include <cstdio>

#include "core/config/registry.h"

#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

int main(int argc, char** argv) {
  for (const auto& conflict : headlab::registration_conflicts())
    std::fprintf(stderr, "%s\n", conflict.c_str());
  if (!headlab::registration_conflicts().empty()) return 1;
  return Catch::Session().run(argc, argv);
}
