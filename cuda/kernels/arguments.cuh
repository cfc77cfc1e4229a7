// What the kernels take, shared by device code and the engine. The includer defines REAL (float or
// double) and, where both are needed, CAVS_NAMESPACE; the file may be included once for each.
#ifdef CAVS_NAMESPACE
namespace CAVS_NAMESPACE {
#endif

typedef REAL real;

// Where row r of an iteration finds its values, as cavs::Source<real> of csrc/kernels/kernels.h.
// map: 0 self, 1 one row for all, 2 index (negative: zeros), 3 sum over j in [offsets[r],
// offsets[r + 1]) of row index[j], or j where index is null. data: of real, or of bfloat16 where
// `half`; strides count values.
struct Rows {
  const void* data;
  long long stride, base;
  const int* index;
  const int* offsets;
  unsigned char map, half;
  int width;
};
static_assert(sizeof(Rows) == 48, "Rows has the layout of cavs::cuda::Rows");

// Operands side by side: column c of source s is column (widths of those before) + c.
struct Sources {
  Rows of[8];
  int count;
};

// Where sums over the rows of sources go, each as wide as its source. A __grid_constant__: kernels
// would copy so small a structure to index it.
struct Sum {
  real* out;
  int width, accumulate;
};
struct Sums {
  Sum of[8];
};

// to[i * to_stride + j] = from[i * row_stride + j * col_stride] for i < rows, j < cols; of unpack,
// += instead. to: of real, or of pack with CAVS_HALF of bfloat16.
struct Piece {
  const real* from;
  void* to;
  long long row_stride, col_stride, rows, cols, to_stride;
};

// Rows of a gradient, `width` wide and contiguous, and where they belong: row i of grad is that of
// param + offset + (rows ? rows[i] : i) * stride; the states lie as the parameter does.
struct Stretch {
  real* param;
  const real* grad;
  real* state1;
  real* state2;
  const int* rows;
  long long count, width, stride, offset;
};

// Of one training step: the loss, the norm of its gradient, what clipping multiplies it by, and
// whether it counts (else nothing is updated): loss and norm are finite, as those of the step
// before.
struct Outcome {
  double loss, norm, scale;
  int ok;
};

// cavs::OptimizerStep. kind: 0 SGD, 1 momentum, 2 Adagrad, 3 Adam, 4 AdamW.
struct Optimizer {
  int kind, nesterov;
  double lr, momentum, beta1, beta2, eps, weight_decay;
  double grad_scale, bias1, bias2;
};

#ifdef CAVS_NAMESPACE
}  // namespace CAVS_NAMESPACE
#endif
