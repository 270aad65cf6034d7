// Whether the system lets this process start threads: OpenMP ends a process that gets none.
#pragma once

namespace headlab {

bool can_start_threads(int count);  // so many more at once, now
// std::system_error, with how many there were to be, where it cannot.
void require_startable_threads(int count);

}  // namespace headlab
