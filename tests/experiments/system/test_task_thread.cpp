// The writing thread's queue: in order, bounded, errors come back.
#include <pthread.h>

#include <array>
#include <atomic>
#include <future>
#include <stdexcept>
#include <string>
#include <vector>

#include "experiments/system/task_thread.h"
#include "tests/catch.h"

namespace headlab::test_task_thread {
namespace {

TaskThread::Hooks quiet() {
  return {[] { return std::nullopt; }, [] {}, [] {}};
}

TEST_CASE("tasks run in order, in one other thread, and a call waits for its own") {
  std::vector<int> ran;
  std::thread::id where;
  std::array<char, 16> name{};
  TaskThread thread("tasks", {}, quiet());
  for (int i = 0; i < 1000; ++i) thread.push([&, i] { ran.push_back(i); });
  thread.call([&] {
    where = std::this_thread::get_id();
    pthread_getname_np(pthread_self(), name.data(), name.size());
  });
  CHECK(std::string(name.data()) == "tasks");
  CHECK(where != std::this_thread::get_id());
  REQUIRE(ran.size() == 1000);
  for (int i = 0; i < 1000; ++i) CHECK(ran[i] == i);
}

TEST_CASE("what waits is run before the thread ends, and then the end") {
  std::vector<int> ran;
  {
    TaskThread::Hooks hooks = quiet();
    hooks.end = [&] { ran.push_back(-1); };
    TaskThread thread("tasks", {}, hooks);
    for (int i = 0; i < 50; ++i) thread.push([&, i] { ran.push_back(i); });
  }
  REQUIRE(ran.size() == 51);
  CHECK(ran.back() == -1);
}

TEST_CASE("a full queue holds up who pushes") {
  std::atomic<int> pushed = 0;
  std::promise<void> filled;
  int most = 0;
  {
    TaskThread thread("tasks", {4, 1000}, quiet());
    const auto look = [&](int ran) { most = std::max(most, pushed - ran); };
    thread.push([&] { filled.get_future().wait(); });
    for (int i = 0; i < 2000; ++i) {
      thread.push([&, i] { look(i); });
      if (++pushed == 4) filled.set_value();  // before that the thread stands still
    }
  }
  CHECK(pushed == 2000);
  CHECK(most >= 4);
  CHECK(most <= 6);  // 4 wait, one runs, one has been let in but not counted
}

TEST_CASE("large tasks fill the queue by their bytes, but one is always let in") {
  std::atomic<int> pushed = 0;
  int most = 0;
  {
    TaskThread thread("tasks", {1000, 100}, quiet());
    for (int i = 0; i < 500; ++i) {
      thread.push([&, i] { most = std::max(most, pushed - i); }, i % 2 ? 60 : 5000);
      ++pushed;
    }
  }
  CHECK(pushed == 500);
  CHECK(most <= 3);
}

TEST_CASE("the error of a task is thrown by every later call, and drops what waits") {
  bool later = false;
  int ends = 0;
  {
    TaskThread::Hooks hooks = quiet();
    hooks.end = [&] { ++ends; };
    TaskThread thread("tasks", {}, hooks);
    CHECK_THROWS_WITH(thread.call([] { throw std::runtime_error("disk full"); }), "disk full");
    CHECK_THROWS_WITH(thread.push([&] { later = true; }), "disk full");
    CHECK_THROWS_WITH(thread.call([&] { later = true; }), "disk full");
  }
  CHECK(!later);
  CHECK(ends == 1);
}

TEST_CASE("when the deadline has passed late() runs, also while tasks keep coming") {
  std::atomic<bool> due = false;
  std::atomic<int> late = 0;
  TaskThread::Hooks hooks = quiet();
  hooks.deadline = [&]() -> std::optional<TaskThread::Clock::time_point> {
    if (!due) return std::nullopt;
    return TaskThread::Clock::now();
  };
  hooks.late = [&] {
    due = false;
    ++late;
  };
  TaskThread thread("tasks", {}, hooks);
  for (int i = 0; i < 20; ++i) thread.call([&] { due = true; });
  thread.call([] {});
  CHECK(late == 20);
}

}  // namespace
}  // namespace headlab::test_task_thread
