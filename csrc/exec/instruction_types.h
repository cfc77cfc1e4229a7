// The types of instructions. A new one is a line of this list, a file of exec/instructions/ that
// defines its traits, and an entry of cuda/executor/instructions.cc; docs/operators.md shows one.
#pragma once

#include <cstddef>
#include <cstdint>

// X(enumerator, name): `name` is also the name in programs and the record in cavs::instructions.
#define CAVS_INSTRUCTIONS(X)               \
  X(kMatmul, matmul)                       \
  X(kMap, map)                             \
  X(kSegmentMax, segment_max)              \
  X(kSegmentProduct, segment_product)      \
  X(kCrossEntropy, cross_entropy)          \
  X(kCrossEntropyGrad, cross_entropy_grad) \
  X(kCopy, copy)                           \
  X(kMatmulTN, matmul_tn)                  \
  X(kSumRows, sum_rows)                    \
  X(kLookupGrad, lookup_grad)              \
  X(kLstm, lstm)                           \
  X(kLstmGrad, lstm_grad)                  \
  X(kLstmWeightGrad, lstm_weight_grad)

namespace cavs {

enum class InstructionType : uint8_t {
#define CAVS_ENUMERATOR(enumerator, name) enumerator,
  CAVS_INSTRUCTIONS(CAVS_ENUMERATOR)
#undef CAVS_ENUMERATOR
};

#define CAVS_ONE(enumerator, name) +1
constexpr size_t kNumInstructions = CAVS_INSTRUCTIONS(CAVS_ONE);
#undef CAVS_ONE

}  // namespace cavs
