#include "experiments/system/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "core/errors.h"

namespace headlab {
namespace {

void require_written(bool written) {
  if (!written) throw RunError(std::string("stdout: cannot be written: ") + std::strerror(errno));
}

}  // namespace

void print_result(std::string_view text) {
  require_written(std::fwrite(text.data(), 1, text.size(), stdout) == text.size());
}

void flush_results() { require_written(std::fflush(stdout) == 0 && std::ferror(stdout) == 0); }

}  // namespace headlab
