// The update half of a training step. square, update: a block per chunk; compute_outcome: one
// block. The formulas are those of csrc/kernels/isa_update.h.
#include "update.cuh"

namespace {

// Blocks per multiprocessor, which bounds the registers.
constexpr int kBlocks = sizeof(real) == 4 ? 3 : 2;

// Sum over the threads of the block, in a fixed order.
__device__ double block_sum(double x) {
  __shared__ double of_thread[kThreads];
  of_thread[threadIdx.x] = x;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) of_thread[threadIdx.x] += of_thread[threadIdx.x + half];
    __syncthreads();
  }
  const double sum = of_thread[0];
  __syncthreads();  // the array is reused
  return sum;
}

__device__ bool finite(double x) { return x - x == 0; }

enum Type { kSgd, kMomentum, kAdagrad, kAdam, kAdamW };

}  // namespace

// Squares are summed in double for any type of values: the norm decides about clipping.
extern "C" __global__ __launch_bounds__(256, 4) void square(const UpdateChunk* chunks, int count,
                                                            double* partial) {
  for (int i = blockIdx.x; i < count; i += gridDim.x) {
    const UpdateChunk s = chunks[i];
    const long long n = s.count * s.width, whole = aligned(s.grad) ? n / kWide * kWide : 0;
    double sum = 0;
#pragma unroll 4
    for (long long j = static_cast<long long>(threadIdx.x) * kWide; j < whole;
         j += kThreads * kWide) {
      const Lanes<kWide> x = take<kWide>(s.grad + j);
#pragma unroll
      for (int k = 0; k < kWide; ++k) sum += static_cast<double>(x.v[k]) * x.v[k];
    }
    for (long long j = whole + threadIdx.x; j < n; j += kThreads) {
      sum += static_cast<double>(s.grad[j]) * s.grad[j];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[i] = sum;
  }
}

extern "C" __global__ __launch_bounds__(256, 4) void compute_outcome(const double* partial,
                                                                     int count, const real* loss,
                                                                     double max_norm,
                                                                     const Outcome* before,
                                                                     Outcome* outcome) {
  double squares = 0;
  for (int i = threadIdx.x; i < count; i += kThreads) squares += partial[i];
  squares = block_sum(squares);
  if (blockIdx.x > 0 || threadIdx.x > 0) return;
  const double norm = sqrt(squares), value = loss != nullptr ? static_cast<double>(*loss) : 0;
  outcome->loss = value;
  outcome->norm = norm;
  outcome->scale = max_norm > 0 && norm > max_norm ? max_norm / norm : 1;
  outcome->ok = finite(norm) && finite(value) && (before == nullptr || before->ok);
}

extern "C" __global__ __launch_bounds__(256, kBlocks) void update(const UpdateChunk* chunks,
                                                                  int count, Optimizer o,
                                                                  const Outcome* outcome) {
  if (!outcome->ok) return;
  const real lr = static_cast<real>(o.lr), eps = static_cast<real>(o.eps);
  const real scale = static_cast<real>(o.grad_scale * outcome->scale);
  const real momentum = static_cast<real>(o.momentum);
  const real decay = o.type == kAdamW ? real(0) : static_cast<real>(o.weight_decay);
  const auto gradient = [=](real g, real p) { return g * scale + p * decay; };
  if (o.type == kSgd) {
    update_each<0>(chunks, count, [=](real g, real& p, real*) { p -= lr * gradient(g, p); });
  } else if (o.type == kMomentum) {
    const bool nesterov = o.nesterov != 0;
    update_each<1>(chunks, count, [=](real g, real& p, real* states) {
      real& b = states[0];
      g = gradient(g, p);
      b = momentum * b + g;
      p -= lr * (nesterov ? g + momentum * b : b);
    });
  } else if (o.type == kAdagrad) {
    update_each<1>(chunks, count, [=](real g, real& p, real* states) {
      real& s = states[0];
      g = gradient(g, p);
      s += g * g;
      p -= lr * g / (square_root(s) + eps);
    });
  } else {
    const real beta1 = static_cast<real>(o.beta1), beta2 = static_cast<real>(o.beta2);
    const real rest1 = static_cast<real>(1 - o.beta1), rest2 = static_cast<real>(1 - o.beta2);
    const real rate = static_cast<real>(o.lr / o.bias1);
    const real root = static_cast<real>(1 / sqrt(o.bias2));
    const real keep = o.type == kAdamW ? static_cast<real>(1 - o.lr * o.weight_decay) : real(1);
    update_each<2>(chunks, count, [=](real g, real& p, real* states) {
      real &m = states[0], &v = states[1];
      g = gradient(g, p);
      m = beta1 * m + rest1 * g;
      v = beta2 * v + rest2 * (g * g);
      p = p * keep - rate * m / (square_root(v) * root + eps);
    });
  }
}
