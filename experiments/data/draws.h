// Random numbers that examples are made of.
#pragma once

#include <cstdint>
#include <vector>

namespace headlab {

// The random draws of one example. Draw i of two different keys is never the same word.
class Draws {
 public:
  explicit Draws(uint64_t key) : key_(key) {}
  uint64_t bits();
  int64_t below(int64_t n);                                 // uniform over 0 .. n - 1
  int64_t between(int64_t low, int64_t high);               // uniform over low .. high
  double unit();                                            // uniform over [0, 1)
  std::vector<int64_t> distinct(int64_t count, int64_t n);  // of 0 .. n - 1, in random order

 private:
  uint64_t key_, count_ = 0;
};

}  // namespace headlab
