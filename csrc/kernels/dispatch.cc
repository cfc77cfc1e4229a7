// Choice of the kernel table for the best instruction set, once per process.
#include "kernels/dispatch.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <type_traits>
#include <utility>

#include "base/config_error.h"

#ifdef CAVS_HAVE_AVX512
#include <cpuid.h>
#endif
#ifdef CAVS_HAVE_AMX_SPLIT
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace cavs {
namespace {

constexpr const char* kProducts[] = {"float32", "int16", "bfloat16x3",
                                     "bfloat16"};  // names of Products

struct Isa {
  const char* name;
  bool supported;
  const IsaTable<float>* float_table;
  const IsaTable<double>* double_table;
};

std::vector<Isa> built_isas() {
  return {
      {"base", true, &base::kFloat, &base::kDouble},
#ifdef CAVS_HAVE_AVX2
      {"avx2", __builtin_cpu_supports("x86-64-v3") > 0, &avx2::kFloat, &avx2::kDouble},
#endif
#ifdef CAVS_HAVE_AVX512
      {"avx512", __builtin_cpu_supports("x86-64-v4") > 0, &avx512::kFloat, &avx512::kDouble},
#endif
  };
}

// Capabilities of the processor: leaf 7 of cpuid and its subleaf 1.
struct Features {
  unsigned ecx = 0, edx = 0, next_eax = 0;
};
[[maybe_unused]] Features features() {
  Features f;
#ifdef CAVS_HAVE_AVX512
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) f.ecx = c, f.edx = d;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) f.next_eax = a;
#endif
  return f;
}
[[maybe_unused]] bool has_bfloat16() { return (features().next_eax & 1u << 5) != 0; }
[[maybe_unused]] bool has_integers() { return (features().ecx & 1u << 11) != 0; }

#ifdef CAVS_HAVE_AMX_SPLIT
// Ask Linux for the registers of the matrix unit, 8 KiB per thread.
bool granted_matrix_unit() {
  constexpr unsigned kUnit = 1u << 24, kBfloat16 = 1u << 22;  // bits of edx
  constexpr long kRequest = 0x1023, kRegisters = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  const unsigned edx = features().edx;
  return (edx & kUnit) != 0 && (edx & kBfloat16) != 0 && has_bfloat16() &&
         syscall(SYS_arch_prctl, kRequest, kRegisters) == 0;
}
#endif

// The faster of two tables with the same results; takes 0.2 ms.
[[maybe_unused]] bool faster(const IsaTable<float>& a, const IsaTable<float>& b) {
  double best[2] = {};
  for (int repeat = 0; repeat < 20; ++repeat) {
    best[0] = std::max(best[0], multiply_adds_per_second(a, 1000));
    best[1] = std::max(best[1], multiply_adds_per_second(b, 1000));
  }
  return best[0] > best[1];
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string chosen_isa() {
  const char* wish = std::getenv("CAVS_ISA");
  return wish != nullptr && *wish != '\0' ? wish : supported_isas().back();
}

}  // namespace

std::vector<std::string> supported_isas() {
  std::vector<std::string> names;
  for (const Isa& isa : built_isas())
    if (isa.supported) names.push_back(isa.name);
  return names;
}

template <class T>
const IsaTable<T>& isa_table(const std::string& name) {
  for (const Isa& isa : built_isas()) {
    if (name != isa.name || !isa.supported) continue;
    if constexpr (std::is_same_v<T, float>)
      return *isa.float_table;
    else
      return *isa.double_table;
  }
  throw ConfigError("instruction set \"" + name + "\" (CAVS_ISA): this machine and build have " +
                        joined(supported_isas()),
                    "unset CAVS_ISA: the best one is then chosen");
}

template <class T>
const Kernels<T>& kernels() {
  static const Kernels<T>& table = isa_table<T>(chosen_isa()).kernels;
  return table;
}

const char* name_of(Products products) { return kProducts[static_cast<int>(products)]; }

Products products_named(const std::string& name) {
  const auto* found = std::find(std::begin(kProducts), std::end(kProducts), name);
  if (found == std::end(kProducts))
    throw ConfigError("products of \"" + name + "\": there are " +
                          joined({std::begin(kProducts), std::end(kProducts)}),
                      "name one of them");
  return static_cast<Products>(found - std::begin(kProducts));
}

template <class T>
double multiply_adds_per_second(const IsaTable<T>& table, int64_t iterations) {
  using Clock = std::chrono::steady_clock;
  T sink[2] = {T(1), T(0)};
  const auto start = Clock::now();
  const int64_t done = table.multiply_adds(iterations, sink);
  return static_cast<double>(done) / std::chrono::duration<double>(Clock::now() - start).count();
}

const std::vector<IsaTable<float>>& narrow_tables() {
  // Never destroyed: at exit a thread may still compute.
  static const auto& tables = *new std::vector<IsaTable<float>>([] {
    std::vector<IsaTable<float>> made;
    if (chosen_isa() != "avx512") return made;  // these tables replace part of its code
    [[maybe_unused]] const auto add = [&](void (*take_products)(IsaTable<float>&)) {
      take_products(made.emplace_back(isa_table<float>("avx512")));
    };
#ifdef CAVS_HAVE_AMX_SPLIT
    if (granted_matrix_unit()) add(amx_split::take_products), add(amx_rounded::take_products);
#endif
#ifdef CAVS_HAVE_AVX512_ROUNDED
    if (has_bfloat16()) add(avx512_rounded::take_products);
#endif
#ifdef CAVS_HAVE_AVX512_INTEGERS
    if (has_integers()) {
      add(avx512_integers::take_products), add(avx512_winograd::take_products);
      if (faster(made.end()[-1], made.end()[-2])) std::swap(made.end()[-1], made.end()[-2]);
    }
#endif
    return made;
  }());
  return tables;
}

template <class T>
const Kernels<T>& kernels(Products products) {
  if constexpr (std::is_same_v<T, float>) {
    for (const IsaTable<float>& table : narrow_tables())
      if (table.kernels.products == products) return table.kernels;
  }
  return kernels<T>();
}

template double multiply_adds_per_second<float>(const IsaTable<float>&, int64_t);
template double multiply_adds_per_second<double>(const IsaTable<double>&, int64_t);
template const IsaTable<float>& isa_table<float>(const std::string&);
template const IsaTable<double>& isa_table<double>(const std::string&);
template const Kernels<float>& kernels<float>();
template const Kernels<double>& kernels<double>();
template const Kernels<float>& kernels<float>(Products);
template const Kernels<double>& kernels<double>(Products);

}  // namespace cavs
