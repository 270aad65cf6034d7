// Catch2 2 or 3, whichever the system has.
#pragma once
#include <string>

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
namespace Catch {  // of Catch2 2
inline auto Contains(const std::string& text) { return Matchers::ContainsSubstring(text); }
}  // namespace Catch
#else
#include <catch2/catch.hpp>
#endif

#include <iostream>

namespace headlab::testing {

// For a test that cannot do its work here: scripts/test counts it as skipped, and says why.
inline void skip(const std::string& why) {
  std::cerr << "skipped: " << Catch::getResultCapture().getCurrentTestName() << ": " << why << '\n';
  SUCCEED(why);
}

}  // namespace headlab::testing
