// Products of transposed rows: the cells of the result that their terms reach.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "exec/program.h"

namespace cavs {

struct Spaces;

// A product of transposed rows: one instruction, or all of a global stage. Where several terms
// reach a cell of the result, their rows are stacked one below the other.
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
    // Number of columns of `c` that this cell covers, if it covers all of its rows.
    int32_t columns_of(const Cell& c) const {
      if (c.row < row || row_end < c.row_end) return 0;
      return std::max(std::min(column_end, c.column_end) - std::max(column, c.column), 0);
    }
  };
  std::vector<int32_t> terms;  // instructions
  std::vector<Cell> reach;     // per term
  std::vector<Cell> cells;     // each reached by the same terms, and by at least one
  int32_t rows = 0;            // rows of the result
  int32_t most = 0;            // maximum number of rows of a term
};

// The part of a gradient that a product of transposed rows adds to.
Product::Cell cell_of(const Program& program, const Instruction& product);
Product product_of(const Program& program, const std::vector<int32_t>& terms);

// Multiply-adds of a product in a cell: those needed, and all if rows that reach only some of its
// columns are padded with zeros.
struct ProductWork {
  double needed = 0, all = 0;
};
ProductWork product_work(const Program& program, const Product& product, const Product::Cell& cell,
                         const Spaces& spaces);

// The cells of a product in a batch. Neighbouring cells are joined if that multiplies few zeros,
// because pieces of few columns are slow. Depends on the batch only, so that sums have one order
// for any number of threads.
void join_cells(const Program& program, const Product& product, const Spaces& spaces,
                std::vector<Product::Cell>& cells);

}  // namespace cavs
