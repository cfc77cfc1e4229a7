// Conversions between the engine and its caller, shared by CPU and device: counts and options in,
// rows in the caller's order out.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "exec/executor.h"

namespace cavs {

// Fill the values of kCount buffers, of this batch or of the global one; counts[kFewestCount] is
// the first. Throws std::invalid_argument if there are too few totals.
template <class T>
void fill_counts(const Inputs<T>& inputs, const IndexFeatures& features, T* counts);

// Throws std::invalid_argument unless there are states, a flag and, if any, scales for each of
// `parameters`.
template <class T>
void check_update(const Update<T>& update, size_t parameters);

// Elements of a gradient that a thread of the CPU applies at once.
constexpr int64_t kUpdateChunk = 1 << 14;
// Cut values into pieces of about `most` elements; a fixed size, so that sums have one order.
template <class T>
void cut_piece(const GradientPiece<T>& piece, int64_t most, std::vector<GradientPiece<T>>& out);
// Throws std::out_of_range for a piece that is not inside its parameter.
template <class T>
void check_pieces(const std::vector<GradientPiece<T>>& pieces, const std::vector<int64_t>& sizes);

// Rows and columns of an output as the caller sees it. Throws std::out_of_range for other buffers.
std::pair<int64_t, int64_t> output_shape(const Program& program, const Spaces& spaces,
                                         int32_t buffer);
// The row of the caller that each row of an output is; null: the same.
const int32_t* order_of(const Program& program, const Schedule& schedule, int32_t buffer);
// Copy the rows of a buffer to the caller's order; zero if it has no row.
template <class T>
void to_caller(const Program& program, const Spaces& spaces, const Schedule& schedule,
               int32_t buffer, const T* values, T* out);

// Slots of a table, sorted by row of the table.
std::vector<int32_t> slots_by_row(const Table& table);

}  // namespace cavs
