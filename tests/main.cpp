// The main() of every test program.
#include <csignal>
#include <cstdio>

#include "core/config/registry.h"

#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

#ifdef __SANITIZE_ADDRESS__
// HDF5 1.10 does not free what it has read of an object whose header it then refuses.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }
#endif

int main(int argc, char** argv) {
  std::signal(SIGHUP, SIG_DFL);  // nohup ignores it, and with it what tests start
  for (const auto& conflict : headlab::registration_conflicts())
    std::fprintf(stderr, "%s\n", conflict.c_str());
  if (!headlab::registration_conflicts().empty()) return 1;
  Catch::Session session;
  // A test that comes to its end without having checked anything, and a name that finds no test,
  // are errors.
#ifdef TWOBLUECUBES_SINGLE_INCLUDE_CATCH_HPP_INCLUDED  // Catch 2; 3 knows the latter by itself
  using Warnings = decltype(session.configData().warnings);
  session.configData().warnings =
      static_cast<Warnings>(Catch::WarnAbout::NoAssertions | Catch::WarnAbout::NoTests);
#else
  session.configData().warnings = Catch::WarnAbout::NoAssertions;
#endif
  return session.run(argc, argv);
}
