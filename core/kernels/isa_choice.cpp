#include "core/kernels/isa_choice.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <stdexcept>

namespace headlab {
namespace {

bool machine_has(Isa isa) {
  if (isa == Isa::kDefault) return true;
#ifdef __x86_64__
  if (isa == Isa::kAvx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

std::string names_of(const std::vector<Isa>& isas) {
  std::string names;
  for (const Isa isa : isas) names += (names.empty() ? "" : ", ") + std::string(isa_name(isa));
  return names;
}

// The one of them that the variable's value names, the best without a value; null: none.
const Isa* named(const std::vector<Isa>& isas, const char* value) {
  if (!value || !*value) return &isas.front();
  const auto found = std::find_if(isas.begin(), isas.end(),
                                  [&](Isa isa) { return std::string(value) == isa_name(isa); });
  return found == isas.end() ? nullptr : &*found;
}

Isa asked_isa() {
  const char* value = std::getenv(kIsaVariable);
  if (const auto problem = isa_problem(value); !problem.empty())
    throw std::invalid_argument(problem);
  const auto here = isas_of_machine();
  return *named(here, value);
}

std::atomic<Isa>& chosen_isa() {
  static std::atomic<Isa> chosen = asked_isa();
  return chosen;
}

}  // namespace

const char* isa_name(Isa isa) {
  return isa == Isa::kAvx512 ? "avx512" : isa == Isa::kAvx2 ? "avx2" : "default";
}

std::vector<Isa> all_isas() { return {Isa::kAvx512, Isa::kAvx2, Isa::kDefault}; }

std::vector<Isa> isas_of_machine() {
  auto isas = all_isas();
  std::erase_if(isas, [](Isa isa) { return !machine_has(isa); });
  return isas;
}

std::string isa_problem(const char* value) {
  const auto all = all_isas(), here = isas_of_machine();
  if (named(here, value)) return "";
  const auto asked = std::string(kIsaVariable) + "=" + value;
  if (named(all, value))
    return asked + ": this machine has no such instructions; it has " + names_of(here);
  return asked + ": no such instruction set; there are " + names_of(all);
}

Isa kernel_isa() { return chosen_isa().load(std::memory_order_relaxed); }
void set_kernel_isa(Isa isa) {
  if (!machine_has(isa))
    throw std::invalid_argument(std::string("this machine has no ") + isa_name(isa));
  chosen_isa().store(isa, std::memory_order_relaxed);
}

}  // namespace headlab
