// The manual page, made from the registered commands.
#pragma once

#include <string>

namespace headlab {

std::string manual();  // headlab(1), for man

}  // namespace headlab
