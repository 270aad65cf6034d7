// No data: of a model that was made elsewhere. What is asked of it brings its own.
#include "core/errors.h"
#include "experiments/data/source.h"

namespace headlab {
namespace {

std::shared_ptr<DataSource> open_none(const DataOptions&) {
  throw DataError(
      "data: an imported model has none of its own; --text TEXT or --data FILE gives some, and a "
      "config with `init: RUN` and other data trains it on");
}

const RegisterOpening none_source("none", "no data of its own: a model that was imported",
                                  open_none);

}  // namespace
}  // namespace headlab
