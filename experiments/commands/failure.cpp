#include "experiments/commands/failure.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>

#include "core/config/config.h"
#include "core/errors.h"
#include "experiments/models/finite_weights.h"
#include "experiments/ranks/comm.h"
#include "experiments/system/exit_codes.h"
#include "experiments/system/signals.h"
#include "experiments/system/writer_lock.h"

namespace headlab {

Failure current_failure() {
  try {
    throw;
  } catch (const LostRank& e) {
    return {e.code(), e.what()};
  } catch (const StoppedError& e) {
    return {e.code(), e.what()};
  } catch (const ConfigError& e) {
    return {kUsage, e.what()};
  } catch (const BackendError& e) {
    return {kUsage, e.what()};
  } catch (const DataError& e) {
    return {kData, e.what()};
  } catch (const TakenError& e) {
    return {std::getenv(kStartedBySweep) ? kRunIsTaken : int{kStorage}, e.what()};
  } catch (const RunError& e) {
    return {kStorage, e.what()};
  } catch (const NotFiniteError& e) {
    return {kDiverged, e.what()};
  } catch (const LeakError& e) {
    return {kCheckFailed, e.what()};
  } catch (const DeviceError& e) {
    return {kDevice, e.what()};
  } catch (const c10::OutOfMemoryError& e) {
    return {kDevice, e.what_without_backtrace()};
  } catch (const std::bad_alloc&) {
    return {kDevice, "out of memory; a smaller batch or context needs less"};
  } catch (const std::system_error& e) {
    if (e.code() != std::errc::resource_unavailable_try_again &&
        e.code() != std::errc::not_enough_memory)
      return {kInternal, e.what()};
    return {kDevice, fmt::format("out of processes or memory: {}; end other processes, or "
                                 "raise the limits (ulimit -u, ulimit -v)",
                                 e.what())};
  } catch (const c10::Error& e) {
    const std::string what = e.what_without_backtrace();
    const auto says = [&](const char* words) { return what.find(words) != what.npos; };
    if (!says("DefaultCPUAllocator") && !says("calculation overflowed") &&
        !says("multiplication overflow"))
      return {kInternal, what};
    return {kDevice, "out of memory; a smaller model, batch or context needs less"};
  } catch (const std::exception& e) {
    return {kInternal, e.what()};
  }
}

}  // namespace headlab
