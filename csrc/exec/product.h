// Products of transposed rows: what the terms of one reach, and in which cells they are summed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "exec/program.h"

namespace cavs {

struct Spaces;

// A product of transposed rows: one instruction, or those of a global stage as one. Where several
// reach a cell of the result, their rows stand one below the other.
struct Product {
  struct Cell {
    int32_t row, row_end, column, column_end;
    int32_t rows() const { return row_end - row; }
    int32_t columns() const { return column_end - column; }
    int64_t size() const { return int64_t{rows()} * columns(); }
    bool holds(const Cell& c) const {
      return row <= c.row && c.row_end <= row_end && column <= c.column &&
             c.column_end <= column_end;
    }
    // The columns that it has of `c`, if it has all of its rows.
    int32_t columns_of(const Cell& c) const {
      if (c.row < row || row_end < c.row_end) return 0;
      return std::max(std::min(column_end, c.column_end) - std::max(column, c.column), 0);
    }
  };
  std::vector<int32_t> terms;  // instructions
  std::vector<Cell> reach;     // of each
  std::vector<Cell> cells;     // that the same terms reach, and at least one
  int32_t rows = 0;            // of the result
  int32_t most = 0;            // of those of a term
};

// What a product of transposed rows writes of the gradient that it adds to.
Product::Cell cell_of(const Program& program, const Instruction& product);
Product product_of(const Program& program, const std::vector<int32_t>& terms);

// Multiply-adds of a product in a cell that are needed, and all there are if rows that reach only
// some of its columns stand there with zeros in the others.
struct ProductWork {
  double needed = 0, all = 0;
};
ProductWork product_work(const Program& program, const Product& product, const Product::Cell& cell,
                         const Spaces& spaces);

// The cells of a product in a batch: those beside each other are one where few zeros are multiplied
// for it, as pieces of few columns are slow. Depends on the batch alone, so that sums have one
// order for any number of threads.
void join_cells(const Program& program, const Product& product, const Spaces& spaces,
                std::vector<Product::Cell>& cells);

}  // namespace cavs
