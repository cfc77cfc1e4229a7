#include "exec/progress.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace cavs {

GradientProgress::GradientProgress(const Analysis& analysis, const std::vector<int64_t>& sizes)
    : analysis_(analysis), sizes_(sizes) {
  int32_t slabs = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    first_.push_back(slabs);
    const int64_t slab = analysis.slab[i];
    slabs += static_cast<int32_t>(std::max<int64_t>(1, (sizes[i] + slab - 1) / slab));
  }
  pieces_.assign(slabs, 0);
  left_ = std::make_unique<std::atomic<int32_t>[]>(slabs);
  fill(0);
}

template <class F>
void GradientProgress::each_slab(int32_t param, int64_t begin, int64_t end, F&& f) const {
  const int64_t slab = analysis_.slab[param];
  for (int64_t s = begin / slab; s * slab < end; ++s) f(first_[param] + s);
}

// Call f(slab) for the slabs that an item works on.
template <class F>
void GradientProgress::each_slab(const Item& item, F&& f) const {
  const auto all_of = [&](const std::vector<int32_t>& params) {
    for (int32_t param : params) each_slab(param, 0, sizes_[param], f);
  };
  std::visit(
      Overloaded{[](const PackWeight&) {},
                 [&](const ZeroGradient& i) { each_slab(i.parameter, 0, sizes_[i.parameter], f); },
                 [&](const RunBody& i) { all_of(analysis_.gradients_of_body[i.body]); },
                 [&](const SumCell& i) {
                   const auto& params = analysis_.gradients_of_instruction[i.instruction];
                   const int64_t width = analysis_.result_width[i.instruction];
                   if (width == 0) return all_of(params);
                   for (int32_t param : params) {
                     each_slab(param, i.rows.begin * width, i.rows.end * width, f);
                   }
                 },
                 [&](const auto& i) { all_of(analysis_.gradients_of_instruction[i.instruction]); }},
      item);
}

void GradientProgress::count(const Plan& plan) {
  std::fill(pieces_.begin(), pieces_.end(), 0);
  for (const Item& item : plan.items) {
    each_slab(item, [&](int64_t slab) { ++pieces_[slab]; });
  }
}

void GradientProgress::arm() {
  watched_ = true;
  fill(kArmed);
}

void GradientProgress::begin(const std::vector<Item>& prologue) {
  std::vector<int32_t> pieces = pieces_;
  for (const Item& item : prologue) each_slab(item, [&](int64_t slab) { ++pieces[slab]; });
  for (size_t i = 0; i < pieces.size(); ++i) set(i, pieces[i]);
}

void GradientProgress::finished(const Item& item) {
  each_slab(item, [&](int64_t slab) {
    if (left_[slab].fetch_sub(1, std::memory_order_acq_rel) == 1) left_[slab].notify_all();
  });
}

void GradientProgress::finished(int32_t param) {
  each_slab(param, 0, sizes_[param], [&](int64_t slab) { set(slab, 0); });
}

void GradientProgress::fail() { fill(kFailed); }

bool GradientProgress::wait(int32_t param, int64_t begin, int64_t end) const {
  if (begin < 0 || begin > end || end > sizes_[param]) {
    throw std::out_of_range("elements " + std::to_string(begin) + " to " + std::to_string(end) +
                            " of a gradient that has " + std::to_string(sizes_[param]));
  }
  bool final = true;
  each_slab(param, begin, end, [&](int64_t slab) {
    int32_t left;
    while ((left = left_[slab].load(std::memory_order_acquire)) > 0) {
      left_[slab].wait(left, std::memory_order_acquire);
    }
    final &= left == 0;
  });
  return final;
}

void GradientProgress::set(size_t slab, int32_t value) {
  // An exchange, so that a waiting thread is seen after the new value is visible.
  left_[slab].exchange(value, std::memory_order_acq_rel);
  if (value <= 0) left_[slab].notify_all();
}

void GradientProgress::fill(int32_t value) {
  for (size_t i = 0; i < pieces_.size(); ++i) set(i, value);
}

}  // namespace cavs
