// Errors that map to exit codes. ConfigError (exit 2) is in config.h.
#pragma once

#include <stdexcept>

namespace headlab {

// A data file or a file of tensors is missing, truncated or wrong (exit 3).
class DataError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A checkpoint, a log or an output directory cannot be read or written (exit 4).
class RunError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The path of attention that is asked for does not serve these heads or inputs (exit 2).
class BackendError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A kind of heads, or a model, lets through what its mask hides (exit 1).
class LeakError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The device asked for is not there (exit 6).
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace headlab
