// What progress writes, and when, on a terminal and elsewhere.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "experiments/system/progress.h"
#include "tests/catch.h"

namespace headlab::test_progress {
namespace {

// A stream in memory and a clock that the test moves.
class Screen {
 public:
  Screen() : file_(::open_memstream(&text_, &size_)) { REQUIRE(file_ != nullptr); }
  ~Screen() {
    std::fclose(file_);
    std::free(text_);
  }
  ProgressOutput output(bool terminal) {
    return {.file = file_, .terminal = terminal, .seconds = [this] { return now; }};
  }
  std::string text() {
    std::fflush(file_);
    return {text_, size_};
  }
  double now = 100;

 private:
  char* text_ = nullptr;
  size_t size_ = 0;
  std::FILE* file_;
};

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST_CASE("elsewhere than on a terminal progress is plain lines, 10 s apart and one at the end") {
  Screen screen;
  Progress progress(0, 100, 10, screen.output(false));
  progress.validation(3.5);
  for (int64_t step = 1; step <= 100; ++step) {
    screen.now += 0.25;
    progress.step(step, 64, 2.5);
  }
  progress.finish();
  CHECK(screen.text() ==
        "step 40/100  loss 2.5000  val 3.5000 at 0  256 tokens/s  15s left\n"
        "step 80/100  loss 2.5000  val 3.5000 at 0  256 tokens/s  5s left\n"
        "step 100/100  loss 2.5000  val 3.5000 at 0  256 tokens/s  in 25s\n");
}

TEST_CASE("plain lines of slow steps are as many steps apart as metrics are") {
  Screen screen;
  Progress progress(0, 9, 4, screen.output(false));
  for (int64_t step = 1; step <= 9; ++step) {
    screen.now += 3600;
    progress.step(step, 1);
  }
  progress.finish();
  CHECK(screen.text() ==
        "step 4/9  0 tokens/s  5h 00m left\n"
        "step 8/9  0 tokens/s  1h 00m left\n"
        "step 9/9  0 tokens/s  in 9h 00m\n");
}

TEST_CASE("a terminal's line is rewritten at most ten times a second and stays at the end") {
  Screen screen;
  Progress progress(0, 1000, 10, screen.output(true));
  for (int64_t step = 1; step <= 1000; ++step) {
    screen.now += 0.001953125;
    progress.step(step, 1000, 1.25);
  }
  progress.finish();
  const std::string text = screen.text();
  CHECK(count(text, "\r\x1b[K") <= 21);
  CHECK(count(text, "\r\x1b[K") >= 18);
  CHECK(count(text, "\n") == 1);
  CHECK(text.ends_with("\r\x1b[Kstep 1000/1000  loss 1.2500  512.0k tokens/s  in 2s\n"));
}

TEST_CASE("a line that is said stands above the live one") {
  Screen screen;
  Progress progress(0, 10, 1, screen.output(true));
  screen.now += 1;
  progress.step(1, 10, 2.0);
  progress.say("warning: something");
  CHECK(screen.text() ==
        "\r\x1b[Kstep 1/10  loss 2.0000  10 tokens/s  9s left"
        "\r\x1b[Kwarning: something\n"
        "\r\x1b[Kstep 1/10  loss 2.0000  10 tokens/s  9s left");
}

TEST_CASE("a validation loss is shown at once on a terminal") {
  Screen screen;
  Progress progress(0, 10, 1, screen.output(true));
  progress.validation(2.25);
  CHECK(screen.text() == "\r\x1b[Kstep 0/10  val 2.2500 at 0");
}

TEST_CASE("what is measured behind the last step is told until it ends") {
  Screen screen;
  Progress progress(0, 1, 1, screen.output(false));
  screen.now += 1;
  progress.step(1, 64, 2.5);
  for (int64_t examples = 100; examples <= 1000; examples += 100) {
    screen.now += 3;
    progress.measured(examples, 1000);
  }
  progress.validation(3.5);
  progress.finish();
  CHECK(screen.text() ==
        "step 1/1  loss 2.5000  64 tokens/s  measured 30 %  21s left\n"
        "step 1/1  loss 2.5000  64 tokens/s  measured 70 %  9s left\n"
        "step 1/1  loss 2.5000  val 3.5000 at 1  64 tokens/s  in 1s\n");
}

TEST_CASE("a measurement that is given up leaves no trace in the last line") {
  Screen screen;
  Progress progress(0, 1, 1, screen.output(false));
  screen.now += 1;
  progress.step(1, 64, 2.5);
  progress.measured(100, 1000);
  progress.validation(3.5);
  progress.finish();
  CHECK(screen.text() == "step 1/1  loss 2.5000  val 3.5000 at 1  64 tokens/s  in 1s\n");
}

TEST_CASE("a narrow terminal gets the parts that fit on one line") {
  Screen screen;
  ProgressOutput output = screen.output(true);
  output.width = 28;
  Progress progress(0, 10, 1, output);
  screen.now += 1;
  progress.step(1, 10, 2.0);
  CHECK(screen.text() == "\r\x1b[Kstep 1/10  loss 2.0000");
}

TEST_CASE("colours mark the labels and take no room") {
  Screen screen;
  ProgressOutput output = screen.output(true);
  output.color = true;
  output.width = 24;
  Progress progress(0, 10, 1, output);
  screen.now += 1;
  progress.step(1, 10, 2.0);
  CHECK(screen.text() == "\r\x1b[K\x1b[2mstep \x1b[22m1/10  \x1b[2mloss \x1b[22m2.0000");
}

TEST_CASE("a loss that is no number is shown as what it is") {
  Screen screen;
  Progress progress(0, 2, 1, screen.output(false));
  screen.now += 20;
  progress.step(1, 0, std::nan(""));
  CHECK(screen.text() == "step 1/2  loss nan  20s left\n");
}

TEST_CASE("a run that resumes counts speed and time from there") {
  Screen screen;
  Progress progress(500, 1000, 1, screen.output(false));
  screen.now += 20;
  progress.step(510, 200);
  CHECK(screen.text() == "step 510/1000  10 tokens/s  16m 20s left\n");
}

TEST_CASE("nothing is written of a run without a step, nor after the end") {
  Screen screen;
  {
    Progress progress(0, 10, 1, screen.output(true));
    progress.finish();
    screen.now += 20;
    progress.step(1, 1);
    progress.validation(1);
  }
  CHECK(screen.text().empty());
}

TEST_CASE("a stream that refuses is no error") {
  std::FILE* full = std::fopen("/dev/full", "w");
  REQUIRE(full != nullptr);
  double now = 0;
  {
    Progress progress(0, 2, 1, {.file = full, .seconds = [&] { return now += 20; }});
    CHECK_NOTHROW(progress.step(1, 1, 1.0));
    CHECK_NOTHROW(progress.say("text"));
  }
  std::fclose(full);
}

TEST_CASE("NO_COLOR turns colours off, and a dumb terminal is none") {
  ::setenv("NO_COLOR", "1", 1);
  CHECK_FALSE(ProgressOutput::standard().color);
  ::unsetenv("NO_COLOR");
  const std::string before = std::getenv("TERM") ? std::getenv("TERM") : "";
  ::setenv("TERM", "dumb", 1);
  CHECK_FALSE(ProgressOutput::standard().terminal);
  before.empty() ? ::unsetenv("TERM") : ::setenv("TERM", before.c_str(), 1);
}

}  // namespace
}  // namespace headlab::test_progress
