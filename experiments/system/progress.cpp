#include "experiments/system/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "experiments/text/duration.h"
#include "experiments/text/visible_text.h"

namespace headlab {
namespace {

constexpr double kRedraw = 0.1;     // seconds between rewritings of the live line
constexpr double kPlainLine = 10;   // seconds between plain lines, at least
constexpr double kRateMemory = 10;  // seconds after which a step counts for 1/e of a new one
constexpr std::string_view kDim = "\x1b[2m", kNormal = "\x1b[22m";
constexpr std::string_view kErase = "\r\x1b[K";  // to the start of the line, and clear it

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

std::string short_number(double value) {
  if (value >= 1e9) return fmt::format("{:.2f}G", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.2f}M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:.1f}k", value / 1e3);
  return fmt::format("{:.0f}", value);
}

struct Part {
  std::string before, value, after;
};

// The parts that fit; a line that wraps could not be erased.
std::string join(const std::vector<Part>& parts, size_t width, bool color) {
  const auto dim = [&](const std::string& text) {
    return color && !text.empty() ? fmt::format("{}{}{}", kDim, text, kNormal) : text;
  };
  std::string line;
  size_t used = 0;
  for (const auto& [before, value, after] : parts) {
    const std::string gap(used == 0 ? 0 : 2, ' ');
    used += gap.size() + before.size() + value.size() + after.size();
    if (used > width) break;
    line.append(gap).append(dim(before)).append(value).append(dim(after));
  }
  return line;
}

}  // namespace

ProgressOutput ProgressOutput::standard(std::string counted) {
  ProgressOutput output{.file = stderr, .counted = std::move(counted), .seconds = steady_seconds};
  const char* kind = std::getenv("TERM");
  output.terminal =
      ::isatty(STDERR_FILENO) == 1 && kind != nullptr && std::string_view(kind) != "dumb";
  output.color = output.terminal && !is_set("NO_COLOR");
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) output.width = size.ws_col;
  return output;
}

Progress::Progress(int64_t first_step, int64_t total, int64_t every, ProgressOutput output)
    : output_(std::move(output)),
      total_(total),
      every_(every),
      step_(first_step),
      drawn_step_(first_step) {
  if (!output_.seconds) output_.seconds = steady_seconds;
  started_ = stepped_at_ = drawn_at_ = output_.seconds();
}

Progress::~Progress() { finish(); }

void Progress::step(int64_t step, int64_t tokens, std::optional<double> loss) {
  const double now = output_.seconds(), passed = now - stepped_at_;
  const double memory = std::exp(-passed / kRateMemory);
  recent_.seconds = recent_.seconds * memory + passed;
  recent_.tokens = recent_.tokens * memory + static_cast<double>(tokens);
  recent_.steps = recent_.steps * memory + static_cast<double>(step - step_);
  stepped_at_ = now;
  step_ = step;
  if (loss) loss_ = loss;
  const bool due = output_.terminal
                       ? now - drawn_at_ >= kRedraw
                       : now - drawn_at_ >= kPlainLine && step_ - drawn_step_ >= every_;
  if (due) draw();
}

void Progress::validation(double loss) {
  validation_ = loss;
  measured_ = {};
  validated_ = step_;
  if (output_.terminal) draw();
}

void Progress::measured(int64_t examples, int64_t of) {
  const double now = output_.seconds();
  if (measured_.examples == 0) measured_.first = examples, measured_.since = now;
  measured_.examples = examples < of ? examples : 0;
  measured_.of = of;
  if (measured_.examples == 0 || now - drawn_at_ < (output_.terminal ? kRedraw : kPlainLine))
    return;
  draw();
  drawn_step_ = -1;  // the step's own line is still to come
}

void Progress::say(const std::string& text) {
  const bool was_live = live_;
  if (was_live) put(std::string(kErase));
  live_ = false;
  put(visible_text(text) + '\n');
  if (was_live) draw();
}

void Progress::finish() {
  if (finished_) return;
  if (drawn_step_ != step_) draw();
  if (live_) put("\n");
  live_ = false;
  finished_ = true;
}

std::string Progress::line() const {
  std::vector<Part> parts{{output_.counted + " ", fmt::format("{}/{}", step_, total_), ""}};
  if (loss_) parts.push_back({"loss ", fmt::format("{:.4f}", *loss_), ""});
  if (validation_)
    parts.push_back(
        {"val ", fmt::format("{:.4f}", *validation_), fmt::format(" at {}", validated_)});
  if (recent_.tokens > 0 && recent_.seconds > 0) {
    parts.push_back({"", short_number(recent_.tokens / recent_.seconds), " tokens/s"});
  }
  if (measured_.examples > 0) {
    const auto& m = measured_;
    parts.push_back({"measured ", fmt::format("{} %", 100 * m.examples / m.of), ""});
    const double rate =
        static_cast<double>(m.examples - m.first) / (output_.seconds() - m.since);  // 0/0 at first
    if (rate > 0)
      parts.push_back({"", duration_text(static_cast<double>(m.of - m.examples) / rate), " left"});
  } else if (step_ >= total_) {
    parts.push_back({"in ", duration_text(stepped_at_ - started_), ""});
  } else if (recent_.steps > 0) {
    const double left = static_cast<double>(total_ - step_) * recent_.seconds / recent_.steps;
    parts.push_back({"", duration_text(left), " left"});
  }
  const size_t width = output_.terminal ? std::max(output_.width - 1, 0) : std::string::npos;
  return join(parts, width, output_.color);
}

void Progress::draw() {
  if (finished_) return;
  put(output_.terminal ? std::string(kErase) + line() : line() + '\n');
  live_ = output_.terminal;
  drawn_step_ = step_;
  drawn_at_ = output_.seconds();
}

void Progress::put(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), output_.file);
  std::fflush(output_.file);
}

}  // namespace headlab
