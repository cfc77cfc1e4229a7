#include "exec/program.h"

#include <pybind11/stl.h>

#include <string>
#include <tuple>

#include "bindings/fields.h"
#include "bindings/module.h"
#include "exec/executor.h"
#include "exec/instruction.h"
#include "exec/validate.h"

namespace py = pybind11;

namespace cavs {
namespace {

MapOpcode parse_opcode(const std::string& name) {
  std::string all;
  for (size_t i = 0; i < kNumMapOperations; ++i) {
    if (name == kMapOperations[i].name) return static_cast<MapOpcode>(i);
    all += std::string(i > 0 ? ", " : "") + kMapOperations[i].name;
  }
  throw py::value_error("opcode '" + name + "' is none of " + all);
}
void check_size(const py::sequence& s, size_t size, const char* what) {
  if (s.size() != size) {
    throw py::value_error(std::string(what) + " has " + std::to_string(s.size()) +
                          " elements, needs " + std::to_string(size));
  }
}

Operand to_operand(const py::handle& h) {
  const auto t = h.cast<py::sequence>();
  check_size(t, 6, "operand (buffer, column, width, map, array, argument)");
  return {t[0].cast<int32_t>(),
          t[1].cast<int32_t>(),
          t[2].cast<int32_t>(),
          parse<RowMap>(t[3].cast<std::string>(), "row map"),
          parse<Array>(t[4].cast<std::string>(), "array"),
          t[5].cast<int32_t>()};
}

MapOp to_op(const py::handle& h) {
  const auto t = h.cast<py::sequence>();
  check_size(t, 6, "op (opcode, dst, a, b, c, imm)");
  return {parse_opcode(t[0].cast<std::string>()),
          t[1].cast<int16_t>(),
          t[2].cast<int16_t>(),
          t[3].cast<int16_t>(),
          t[4].cast<int16_t>(),
          t[5].cast<double>()};
}

std::shared_ptr<UpdateProgram> make_update_program(std::string key, const py::sequence& ops,
                                                   std::vector<int16_t> results, int32_t registers,
                                                   int32_t numbers) {
  auto out = std::make_shared<UpdateProgram>();
  out->key = std::move(key);
  out->results = std::move(results);
  out->registers = registers;
  out->numbers = numbers;
  for (const py::handle& h : ops) out->ops.push_back(to_op(h));
  if (out->states() < 0 || out->states() > kMostStates || numbers < 1 || numbers > kMostNumbers) {
    throw py::value_error(std::to_string(out->states()) + " states and " + std::to_string(numbers) +
                          " numbers, but a rule has up to " + std::to_string(kMostStates) +
                          " and " + std::to_string(kMostNumbers));
  }
  const auto known = [&](int16_t r) { return r >= 0 && r < registers; };
  const auto written = [&](int16_t r) { return known(r) && r >= out->loads(); };
  bool valid = registers >= out->loads();
  for (int16_t r : out->results) valid = valid && written(r);
  for (const MapOp& op : out->ops) {
    valid = valid && written(op.dst) && known(op.a) && known(op.b) && known(op.c) &&
            op.code != MapOpcode::kUniform;
  }
  if (!valid) throw py::value_error("a rule reads or writes a register that it does not have");
  return out;
}

Instruction to_instruction(const py::dict& dict) {
  const Fields f(dict, {"type", "space", "inputs", "out", "accumulate", "weight", "split",
                        "argument", "argument2", "loads", "ops", "stores", "registers", "outer",
                        "inner", "outward", "label"});
  Instruction in{};
  in.type = parse<InstructionType>(f.need<std::string>("type"), "instruction type");
  in.space = f.need<int32_t>("space");
  in.label = f.get<std::string>("label", "");
  for (const py::handle& h : f.get<py::sequence>("inputs", py::list()))
    in.inputs.push_back(to_operand(h));
  if (f.has("out")) {
    in.out = to_operand(dict["out"]);
    if (in.out.map != RowMap::kSelf) throw py::value_error("[" + in.label + "] out is not self");
    if (!has_out(traits_of(in))) in.out.buffer = -1;
  } else if (has_out(traits_of(in))) {
    throw py::key_error("[" + in.label + "] missing key 'out'");
  }
  in.accumulate = f.get("accumulate", false);
  in.weight = f.get("weight", -1);
  in.split = f.get("split", 0);
  in.argument = f.get("argument", 0);
  in.argument2 = f.get("argument2", 0);
  in.registers = f.get("registers", 0);
  in.outer = f.get("outer", 1);
  in.inner = f.get("inner", 0);
  in.outward = f.get("outward", false);
  for (const py::handle& h : f.get<py::sequence>("loads", py::list())) {
    const auto t = h.cast<py::sequence>();
    check_size(t, 3, "load (operand, outer_stride, scalar)");
    in.loads.push_back({to_operand(t[0]), t[1].cast<int32_t>(), t[2].cast<bool>()});
  }
  for (const py::handle& h : f.get<py::sequence>("ops", py::list())) in.ops.push_back(to_op(h));
  for (const py::handle& h : f.get<py::sequence>("stores", py::list())) {
    const auto t = h.cast<py::sequence>();
    check_size(t, 5, "store (buffer, column, outer_stride, mode, reg)");
    in.stores.push_back({t[0].cast<int32_t>(), t[1].cast<int32_t>(), t[2].cast<int32_t>(),
                         parse<StoreMode>(t[3].cast<std::string>(), "store mode"),
                         t[4].cast<int16_t>()});
  }
  return in;
}

using Pieces =
    std::vector<std::tuple<int32_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>>;

void bind_builder(py::module_& m) {
  py::classh<Builder>(m, "Program", "A compiled program: buffers, weights, instructions, stages.")
      .def(py::init<>())
      .def_property(
          "kinds", [](const Builder& b) { return b.program->kinds; },
          [](Builder& b, std::vector<uint64_t> kinds) { b.open().kinds = std::move(kinds); })
      .def(
          "set_structures",
          [](Builder& b, int32_t structures, std::vector<int32_t> int_structures,
             const std::vector<std::pair<int32_t, int32_t>>& links) {
            Program& p = b.open();
            p.structures = structures;
            p.int_structures = std::move(int_structures);
            p.links.clear();
            for (const auto& [target, source] : links) p.links.push_back({target, source});
          },
          py::arg("structures"), py::arg("int_structures"), py::arg("links"),
          "Number of structures of a sample, the structure of each int feature, and for each link "
          "those that it leads from and to.")
      .def(
          "add_buffer",
          [](Builder& b, const std::string& role, int32_t index, int32_t space, int32_t width,
             int32_t first, int32_t last, const std::string& held) {
            return Builder::add(b.open().buffers,
                                Buffer{parse<Role>(role, "role"), index, space, width, first, last,
                                       parse<Held>(held, "rows held")});
          },
          py::arg("role"), py::arg("index"), py::arg("space"), py::arg("width"),
          py::arg("first") = 0, py::arg("last") = 0, py::arg("held") = "all")
      .def(
          "add_weight",
          [](Builder& b, int64_t k, int64_t n, const Pieces& pieces) {
            Weight w{k, n, {}};
            for (const auto& piece : pieces) {
              w.pieces.push_back(std::apply([](auto... v) { return WeightPiece{v...}; }, piece));
            }
            return Builder::add(b.open().weights, std::move(w));
          },
          py::arg("k"), py::arg("n"), py::arg("pieces"))
      .def(
          "add_instruction",
          [](Builder& b, const py::dict& dict) {
            return Builder::add(b.open().instructions, to_instruction(dict));
          },
          py::arg("instruction"))
      .def(
          "add_stage",
          [](Builder& b, const py::dict& dict) {
            const Fields f(dict, {"type", "space", "body", "reversed", "bodies", "label"});
            Stage s{};
            s.type = parse<StageType>(f.need<std::string>("type"), "stage type");
            s.space = f.get("space", kVertexSpace);
            s.body = f.get<std::vector<int32_t>>("body", {});
            s.reversed = f.get("reversed", false);
            s.bodies = f.get<std::vector<std::vector<int32_t>>>("bodies", {});
            s.label = f.get<std::string>("label", "");
            return Builder::add(b.open().stages, std::move(s));
          },
          py::arg("stage"))
      .def(
          "finish",
          [](Builder& b, int32_t loss, std::vector<int32_t> outputs, int32_t forward_stages) {
            Program& p = b.open();
            p.loss = loss;
            p.outputs = std::move(outputs);
            p.forward_stages = forward_stages;
            validate(p);
            b.finished = true;
          },
          py::arg("loss") = -1, py::arg("outputs") = std::vector<int32_t>{},
          py::arg("forward_stages") = -1,
          "Checks the program and closes it; ValueError naming the instruction at fault.");
}

}  // namespace

void bind_program(py::module_& m) {
  py::tuple instructions(kNumInstructions);
  for (size_t i = 0; i < kNumInstructions; ++i) {
    instructions[i] = name_of(static_cast<InstructionType>(i));
  }
  m.attr("INSTRUCTIONS") = instructions;
  py::dict operations;
  for (const MapOperation& op : kMapOperations) operations[op.name] = op.operands;
  m.attr("MAP_OPERATIONS") = operations;
  bind_builder(m);
  py::classh<UpdateProgram>(m, "UpdateProgram", "An optimiser's rule as a fused kernel.")
      .def(py::init(&make_update_program), py::arg("key"), py::arg("ops"), py::arg("results"),
           py::arg("registers"), py::arg("numbers"),
           "Registers hold value, gradient, states, numbers of the update and what ops compute. "
           "results: those of the new value and states. ValueError for others than it has.");
  m.attr("MOST_STATES") = kMostStates;
  m.attr("MOST_NUMBERS") = kMostNumbers;
  bind_executor(m);
}
}  // namespace cavs
