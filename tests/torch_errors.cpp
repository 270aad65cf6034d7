// What a test program says of an error of torch: its cause, without the forty frames behind it.
#include <c10/util/Exception.h>

#include "tests/catch.h"

namespace {

CATCH_TRANSLATE_EXCEPTION(const c10::Error& error) { return error.what_without_backtrace(); }

}  // namespace
