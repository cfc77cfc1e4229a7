// Parameters of kernels, for device code and host code. The includer defines REAL (float or double)
// and, to include the file once for each, CAVS_NAMESPACE.
#ifdef CAVS_NAMESPACE
namespace CAVS_NAMESPACE {
#endif

typedef REAL real;

// The operand of row r of an iteration, as cavs::Source<real> of csrc/kernels/kernels.h. map: 0 row
// r, 1 one row for all, 2 row index[r] (negative: zeros), 3 the sum of rows index[j] (or j if index
// is null) over j in [offsets[r], offsets[r + 1]). data: of real, or of bfloat16 if `half`; strides
// count values.
struct Rows {
  const void* data;
  long long stride, base;
  const int* index;
  const int* offsets;
  unsigned char map, half;
  int width;
};
static_assert(sizeof(Rows) == 48, "Rows has the layout of cavs::cuda::Rows");

// Concatenated operands: column c of source s is column (widths of earlier sources) + c.
struct Sources {
  Rows of[8];
  int count;
};

// Results of sums over rows, each as wide as its source. Pass it as a __grid_constant__: kernels
// would copy such a small structure in order to index it.
struct Sum {
  real* out;
  int width, accumulate;
};
struct Sums {
  Sum of[8];
};

// pack: to[i * to_stride + j] = from[i * row_stride + j * col_stride] for i < rows, j < cols;
// unpack:
// += instead. to: of real, or of bfloat16 for pack with CAVS_HALF.
struct Piece {
  const real* from;
  void* to;
  long long row_stride, col_stride, rows, cols, to_stride;
};

// Contiguous rows of a gradient, `width` wide, and their parameter: row i of grad updates
// param + offset + (rows ? rows[i] : i) * stride. States have the layout of the parameter.
struct UpdateChunk {
  real* param;
  const real* grad;
  real* states[8];  // null where there are fewer
  const int* rows;
  long long count, width, stride, offset;
};

// The outcome of a training step: its loss, the norm of its gradient and the factor of clipping.
// ok: the step is applied, since loss and norm are finite and the step before was ok.
struct Outcome {
  double loss, norm, scale;
  int ok;
};

// Numbers of an update by a program, see cavs::UpdateProgram; the first multiplies the gradient.
struct UpdateNumbers {
  double of[32];
};

// cavs::OptimizerStep. type: 0 SGD, 1 momentum, 2 Adagrad, 3 Adam, 4 AdamW.
struct Optimizer {
  int type, nesterov;
  double lr, momentum, beta1, beta2, eps, weight_decay;
  double grad_scale, bias1, bias2;
};

#ifdef CAVS_NAMESPACE
}  // namespace CAVS_NAMESPACE
#endif
