// How an error ends the program.
#pragma once

#include <string>

namespace headlab {

struct Failure {
  int code = 0;  // exit_codes.h
  std::string what;
};

// Of the exception that is being handled: to be called where one was caught.
Failure current_failure();

}  // namespace headlab
