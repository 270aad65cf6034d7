#include "experiments/system/output.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include "core/errors.h"
#include "experiments/system/signals.h"
#include "experiments/text/visible_text.h"

namespace headlab {
namespace {

void require_written(bool written) {
  if (StopSignals::received() == SIGHUP) return;  // the terminal has gone with who read it
  if (!written) throw RunError(std::string("stdout: cannot be written: ") + std::strerror(errno));
}

}  // namespace

void print_data(std::string_view bytes) {
  if (::isatty(STDOUT_FILENO) == 1) return print_result(bytes);
  require_written(std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size());
}

void print_result(std::string_view text) {
  const auto shown = visible_text(text);
  require_written(std::fwrite(shown.data(), 1, shown.size(), stdout) == shown.size());
}

void flush_results() { require_written(std::fflush(stdout) == 0 && std::ferror(stdout) == 0); }

void tell_line(std::string_view words) {
  const auto line = "headlab: " + visible_text(words) + '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace headlab
