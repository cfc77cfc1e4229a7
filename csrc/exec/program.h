// A compiled program: buffers, weights, instructions and stages, as plain data. cavs.compiler
// builds it; the executor runs it over the schedule of a batch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exec/instruction_types.h"
#include "kernels/kernels.h"

namespace cavs {

// The rows that a value has. kVertexKind0 + 2 * k: vertices of the program's k-th kind; kEdgeKind0
// + 2 * k: edges whose parent is of that kind. kPresent0 - f: vertices where int feature f is
// present (>= 0), in row order. kDistinct0 - f: the distinct values of int feature f that are
// present, in the order of their first vertex row. kVertexStructure0 + 2 * s, kEdgeStructure0 + 2 *
// s: all vertices, and edges, of structure s, where samples have named structures; else
// kVertexSpace, kEdgeSpace. kPairs0 + kPairsStride * l: the pairs of link l, one row for each
// vertex that a vertex of its target reads; + 1 + k: those whose target is of the program's k-th
// kind.
using Space = int32_t;
constexpr Space kOneSpace = 0, kGraphSpace = 1, kVertexSpace = 2, kEdgeSpace = 3;
constexpr Space kVertexKind0 = 4, kEdgeKind0 = 5;
constexpr Space kVertexStructure0 = 1 << 20, kEdgeStructure0 = kVertexStructure0 + 1;
constexpr int32_t kMostStructures = 64;
constexpr Space kPairs0 = 1 << 21, kPairsStride = 1 << 12;
constexpr Space kPresent0 = -2, kDistinct0 = -(1 << 24);

enum class Role : uint8_t {
  kArena,    // live in the arena from stage `first` to stage `last`
  kScratch,  // live within one chunk of rows of one stage; of an output, then copied to the caller
  kParam,    // parameter `index`
  kGrad,     // dense gradient of parameter `index`; zeroed at the start of a run
  kFeature,  // float feature `index`, in the caller's vertex or edge order
  kOnes,     // a row of ones, stride 0
  kCount,    // one number: count of values >= 0 of int feature `index`, or see Count
};

// Contents of kCount buffers with a negative index. In data-parallel training all counts are those
// of the global batch, and kScale scales sums over this replica's rows to the global batch. The
// vertices and edges of structure s: kVertexRows - 2 * s, kEdgeRows - 2 * s.
enum Count : int32_t { kScale = -1, kGraphRows = -2, kVertexRows = -3, kEdgeRows = -4 };
constexpr int32_t kFewestCount = kEdgeRows - 2 * (kMostStructures - 1);

// Rows of an arena buffer of all vertices, or those of a structure: all, those of vertices with
// children, which come first, or those of leaves.
enum class Held : uint8_t { kAll, kInner, kLeaves };

struct Buffer {
  Role role;
  int32_t index;
  Space space;
  int32_t width;        // elements per row
  int32_t first, last;  // stages, inclusive; kArena only
  Held held = Held::kAll;
};

// Index arrays that a row map can name.
enum class Array : uint8_t {
  kNone,
  kOrder,         // vertex row -> vertex id (float features)
  kEdgeOrder,     // edge row -> edge id
  kChild,         // edge row -> child row
  kParent,        // edge row -> parent row
  kNthChild,      // + argument k
  kNthEdge,       // + argument k
  kParentIfNth,   // + argument k
  kGraphOf,       // vertex row -> graph
  kIndexFeature,  // + argument i: int feature i of the row (vertex or edge feature)
  kChildren,      // segments: edge_offsets, child
  kEdges,         // segments: edge_offsets, edge rows themselves
  kOut,           // segments: out_offsets, out_edges
  kGraphRows,     // + argument s; segments: graph_offsets, graph_rows of structure s
  kNthParents,    // + argument k; segments: rows of the parents whose k-th child the row is
  kNthLeaf,       // + argument k: as kNthChild, but -1 if that child has children
  kPresent,       // + argument f: row of kPresent0 - f -> vertex row
  kPresentOrder,  // + argument f: row of kPresent0 - f -> vertex id
  kPlace,         // + argument f: vertex row -> row of kPresent0 - f, or -1
  kGraphRoots,    // + argument s; segments: graph -> rows of its roots in structure s
  kRowGraphs,     // segments: vertex row -> graphs that it is a vertex of
  kRootGraphs,    // segments: vertex row -> graphs that it is a root of
  kGraphLeaves,   // + argument s; segments: graph -> rows of its leaves in structure s
  kLeafGraphs,    // segments: vertex row -> graphs that it is a leaf of
  kParents,       // segments: out_offsets, rows of the parents, once per edge
  kLinked,        // + argument l: row -> row of the only vertex that link l leads to, or -1
  kLinkedRows,    // + argument l; segments: rows of the vertices that link l leads to
  kLinkReaders,   // + argument l; segments: rows of the vertices that link l leads from
  kPairs,         // + argument l; segments: pairs of link l of a vertex of its target, in order
  kPairTarget,    // + argument l: pair of link l -> row of its target
  kPairSource,    // + argument l: pair of link l -> row of its source
  kSourcePairs,   // + argument l; segments: pairs of link l that read a row, ascending
  kPairOrder,     // + argument l: pair of link l -> its number in the batch
  kDistinct,      // + argument f: vertex row -> row of kDistinct0 - f that has its value, or -1
};

struct Operand {
  int32_t buffer;
  int32_t column;
  int32_t width;
  RowMap map;
  Array array;
  int32_t argument;
};

struct MapLoadSpec {
  Operand operand;
  int32_t outer_stride;
  bool scalar;
};
struct MapStoreSpec {
  int32_t buffer, column;
  int32_t outer_stride;
  StoreMode mode;
  int16_t reg;
};

// One call of a kernel. Each type uses some of the fields, see exec/instructions/.
struct Instruction {
  InstructionType type;
  Space space;  // space of the rows that it runs over
  std::vector<Operand> inputs;
  Operand out{-1, 0, 0, RowMap::kSelf, Array::kNone, 0};  // buffer -1: none
  bool accumulate = false;                                // add to `out`
  int32_t weight = -1;
  int32_t split = 0;  // inputs [0, split) are the left operand of a product of two
  int32_t argument = 0, argument2 = 0;
  // Fused kernels read `loads` and write `stores` instead.
  std::vector<MapLoadSpec> loads;
  std::vector<MapOp> ops;
  std::vector<MapStoreSpec> stores;
  int32_t registers = 0, outer = 1, inner = 0;
  // Sum what the kernel computes over the edges to the parents of a row; its loads by index through
  // kParents and kOut read one row per edge.
  bool outward = false;
  std::string label;  // for reports
};

// A matrix composed of pieces of parameters and packed once per update.
struct WeightPiece {
  int32_t param;
  int64_t offset;                  // first element of the piece in the parameter
  int64_t row_stride, col_stride;  // strides of the piece in the parameter
  int64_t rows, cols, k0, n0;
};
struct Weight {
  int64_t k, n;
  std::vector<WeightPiece> pieces;
};

enum class StageType : uint8_t {
  kRows,  // row-local instructions over all rows of one space (vertices and their edges), chunk by
          // chunk: all instructions of the stage run on a chunk before the next chunk
  kLoop,  // tasks of the batch in order (or reversed), bodies[kind] for each. Sums into gradients
          // come last in a body and run when all rows of a task are complete
  kGlobal,  // one instruction over all rows; or several products that add to parts of one gradient,
            // which are computed as one
};

struct Stage {
  StageType type;
  Space space;                               // kRows: a vertex, present, graph or one space
  std::vector<int32_t> body;                 // kRows, kGlobal: instruction ids
  bool reversed = false;                     // kLoop: backward
  std::vector<std::vector<int32_t>> bodies;  // kLoop: one list per kind of the program
  std::string label;
};

// The structures that a link leads from and to.
struct LinkType {
  int32_t target, source;
  bool operator==(const LinkType&) const = default;
};

struct Program {
  std::vector<uint64_t> kinds;  // keys; the spaces of the k-th kind are kVertexKind0 + 2k, ...
  int32_t structures = 1;       // number of structures of a sample
  std::vector<int32_t> int_structures;  // structure of each int feature; 0 if left out
  std::vector<LinkType> links;          // by number in the batch
  std::vector<Buffer> buffers;
  std::vector<Weight> weights;
  std::vector<Instruction> instructions;
  std::vector<Stage> stages;
  int32_t loss = -1;  // buffer in kOneSpace, or -1
  // Buffers that the caller may read after a run: of the arena, or scratch of a stage over all
  // their rows, whose chunks are copied to the caller while they are in the cache.
  std::vector<int32_t> outputs;
  // Stages that run before the cotangents of outputs are known, if they come from the caller; -1:
  // all stages run at once.
  int32_t forward_stages = -1;
};

}  // namespace cavs
