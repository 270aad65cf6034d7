// headlab._C: the kinds of heads, whole models, and statistics of attention, in Python.
//
// Kinds come from the registry, so that a new one needs no line here. What the classes are in
// Python stands beside this file: heads.py, models.py, watch.py.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "core/config/config.h"
#include "core/errors.h"
#include "scripts/python/headlab/binding.h"

namespace headlab {
namespace {

void translate(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (python_error& raised) {  // by a hook, or by autograd in Python
    raised.restore();
  } catch (const ConfigError& wrong) {
    PyErr_SetString(PyExc_ValueError, wrong.what());
  } catch (const BackendError& wrong) {
    PyErr_SetString(PyExc_ValueError, wrong.what());
  } catch (const c10::ValueError& wrong) {
    PyErr_SetString(PyExc_ValueError, wrong.what_without_backtrace());
  } catch (const c10::Error& wrong) {
    PyErr_SetString(PyExc_RuntimeError, wrong.what_without_backtrace());
  }
}

}  // namespace
}  // namespace headlab

PYBIND11_MODULE(_C, module) {
  pybind11::register_local_exception_translator(&headlab::translate);
  headlab::bind_heads(module);
  headlab::bind_models(module);
  headlab::bind_watch(module);
#ifdef HEADLAB_CUDA
  module.attr("has_cuda") = true;
#else
  module.attr("has_cuda") = false;
#endif
}
