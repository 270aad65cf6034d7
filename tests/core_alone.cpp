// core and all kinds as one shared library without anything of experiments, as an extension of
// Python would hold them (tests/test_core_alone.py).
#include "core/head_kinds.h"

extern "C" size_t headlab_count_kinds() { return headlab::head_names().size(); }
