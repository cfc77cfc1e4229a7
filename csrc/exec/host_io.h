// Between the engine and its caller, the same for the CPU and for a device: counts and options that
// come in, rows in the caller's order that go out.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "exec/executor.h"

namespace cavs {

// What kCount buffers hold, of the batch or of the global one; counts[kFewestCount] is the first.
// Throws std::invalid_argument for too few totals.
template <class T>
void fill_counts(const Inputs<T>& inputs, const IndexFeatures& features, T* counts);

// Throws std::invalid_argument unless there are states, a flag and, where there are some, factors
// for each of `parameters`.
template <class T>
void check_update(const Update<T>& update, size_t parameters);

// The same values in stretches of about `most` elements; fixed, so that sums have one order.
template <class T>
void cut_piece(const GradientPiece<T>& piece, int64_t most, std::vector<GradientPiece<T>>& out);
// Throws std::out_of_range for a piece that lies outside of its parameter.
template <class T>
void check_pieces(const std::vector<GradientPiece<T>>& pieces, const std::vector<int64_t>& sizes);

// Rows and columns of an output as the caller sees it. Throws std::out_of_range for other buffers.
std::pair<int64_t, int64_t> output_shape(const Program& program, const Spaces& spaces,
                                         int32_t buffer);
// The rows of a buffer in the caller's order; zero where it has no row.
template <class T>
void to_caller(const Program& program, const Spaces& spaces, const Schedule& schedule,
               int32_t buffer, const T* values, T* out);

// The slots of a table by ascending row of the table.
std::vector<int32_t> slots_by_row(const Table& table);

}  // namespace cavs
