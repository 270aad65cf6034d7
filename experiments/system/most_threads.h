// How many CPU threads a command may be asked to use.
#pragma once

namespace headlab {

inline constexpr int kMostThreads = 1024;  // more are a slip of the keyboard, and cannot be begun

}  // namespace headlab
