// Runs a program of one instruction, `concat` of docs/operators.md, on one graph.
#include <cstdio>

#include "exec/executor.h"
#include "graph/graph.h"

using namespace cavs;

int main() {
  auto program = std::make_shared<Program>();
  program->kinds = {0};
  program->buffers = {{Role::kParam, 0, kOneSpace, 2, 0, 0},
                      {Role::kParam, 1, kOneSpace, 3, 0, 0},
                      {Role::kArena, 0, kOneSpace, 5, 0, 0}};
  Instruction in{};
  in.type = InstructionType::kConcat;
  in.space = kOneSpace;
  in.label = "concat";
  in.inputs = {{0, 0, 2, RowMap::kOne, Array::kNone, 0}, {1, 0, 3, RowMap::kOne, Array::kNone, 0}};
  in.out = {2, 0, 5, RowMap::kSelf, Array::kNone, 0};
  program->instructions.push_back(in);
  program->stages.push_back({StageType::kRows, kOneSpace, {0}, false, {}, "one"});
  program->outputs = {2};

  float left[] = {1, 2}, right[] = {3, 4, 5};
  Executor<float> executor(program, {{left, 2}, {right, 3}}, Products::kExact);
  Inputs<float> inputs;
  inputs.schedule = make_schedule(batch_of(make_graph({0, 0}, {})), nullptr);
  executor.run(inputs);
  const Output<float> out = executor.output(2);
  for (int i = 0; i < 5; ++i) std::printf("%g ", out.values[i]);

  program->instructions[0].out.width = 4;
  try {
    Executor<float>(program, {{left, 2}, {right, 3}}, Products::kExact);
  } catch (const std::invalid_argument& error) {
    std::printf("%s", error.what());
  }
}
