// headlab_write_hand_built PATH [DATA]: makes a run of the hand-built circuit (hand_built.h), for
// tests that drive the program.
#include <exception>
#include <iostream>

#include "core/torch.h"
#include "tests/hand_built.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: headlab_write_hand_built PATH [DATA]\n";
    return 2;
  }
  try {
    headlab::testing::write_hand_built_run(argv[1],
                                           argc > 2 ? argv[2] : headlab::testing::kHandBuiltData);
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
}
