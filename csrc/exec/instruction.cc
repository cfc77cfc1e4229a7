#include "exec/instruction.h"

#include <iterator>

namespace cavs {
namespace {

#define CAVS_TRAITS(enumerator, name) &instructions::name,
constexpr const InstructionTraits* kTraits[] = {CAVS_INSTRUCTIONS(CAVS_TRAITS)};
#undef CAVS_TRAITS
static_assert(std::size(kTraits) == kNumInstructions);

}  // namespace

const InstructionTraits& traits_of(InstructionType type) {
  return *kTraits[static_cast<size_t>(type)];
}

}  // namespace cavs
