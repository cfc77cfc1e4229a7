// Runs a fused kernel of one operation, `cube` of docs/operators.md, by the block interpreter.
#include <cstdio>
#include <vector>

#include "kernels/isa_map.h"

using namespace cavs;

int main() {
  float in[] = {1, -2, 3}, out[3] = {};
  MapLoad<float> load{};
  load.source.data = in;
  load.source.stride = 3;
  load.source.width = 3;
  const MapOp op{MapOpcode::kCube, 1, 0, 0, 0, 0};
  const MapStore<float> store{out, 3, 0, 0, StoreMode::kWrite, 1};
  const MapKernel<float> kernel{&load, &op, &store, 1, 1, 1, 2, 1, 3, 0, 0, nullptr, nullptr};
  std::vector<float> scratch(CAVS_ISA::map_scratch(kernel));
  CAVS_ISA::map(kernel, 0, 1, scratch.data());
  for (const float x : out) std::printf("%g ", x);
  const MapOperation& cube = kMapOperations[static_cast<int>(MapOpcode::kCube)];
  std::printf("%s %d", cube.name, cube.operands);
}
