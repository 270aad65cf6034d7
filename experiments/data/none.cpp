// No data: of a model that was made elsewhere. What is asked of it brings its own.
#include "core/errors.h"
#include "experiments/data/source.h"

namespace headlab {
namespace {

struct RegisterNone {
  RegisterNone() {
    register_data({"none", "no data of its own: a model that was imported",
                   [] { return std::make_shared<DataOptions>(); },
                   [](const DataOptions&) -> std::shared_ptr<DataSource> {
                     throw DataError(
                         "data: an imported model has none of its own; --text TEXT or --data FILE "
                         "gives some, and a config with `init: RUN` and other data trains it on");
                   }});
  }
};
const RegisterNone none_source;

}  // namespace
}  // namespace headlab
