#include "exec/product.h"

#include "exec/plan.h"

namespace cavs {
namespace {

std::vector<int32_t> sorted(std::vector<int32_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

// Cells between all edges of the reaches of terms; neighbours along the columns are joined if the
// same terms reach them.
std::vector<Product::Cell> cells_of(const std::vector<Product::Cell>& reach) {
  std::vector<int32_t> rows, columns;
  for (const Product::Cell& r : reach) {
    rows.insert(rows.end(), {r.row, r.row_end});
    columns.insert(columns.end(), {r.column, r.column_end});
  }
  rows = sorted(rows);
  columns = sorted(columns);
  const auto same = [&](const Product::Cell& a, const Product::Cell& b) {
    return std::all_of(reach.begin(), reach.end(),
                       [&](const Product::Cell& r) { return r.holds(a) == r.holds(b); });
  };
  std::vector<Product::Cell> cells;
  for (size_t i = 0; i + 1 < rows.size(); ++i) {
    for (size_t j = 0; j + 1 < columns.size(); ++j) {
      const Product::Cell cell{rows[i], rows[i + 1], columns[j], columns[j + 1]};
      const bool reached = std::any_of(reach.begin(), reach.end(),
                                       [&](const Product::Cell& r) { return r.holds(cell); });
      if (!reached) continue;
      if (!cells.empty() && cells.back().row == cell.row &&
          cells.back().column_end == cell.column && same(cells.back(), cell)) {
        cells.back().column_end = cell.column_end;
      } else {
        cells.push_back(cell);
      }
    }
  }
  return cells;
}

}  // namespace

Product::Cell cell_of(const Program& p, const Instruction& in) {
  int32_t k = 0;
  for (int32_t i = 0; i < in.split; ++i) k += in.inputs[i].width;
  const int32_t width = p.buffers[in.out.buffer].width;
  const int32_t row = in.out.column / width, column = in.out.column % width;
  return {row, row + k, column, column + in.out.width};
}

Product product_of(const Program& p, const std::vector<int32_t>& terms) {
  Product product;
  product.terms = terms;
  for (int32_t id : terms) {
    product.reach.push_back(cell_of(p, p.instructions[id]));
    product.most = std::max(product.most, product.reach.back().rows());
  }
  int32_t row = product.reach[0].row, column = product.reach[0].column;
  for (const Product::Cell& c : product.reach) {
    row = std::min(row, c.row);
    column = std::min(column, c.column);
  }
  for (Product::Cell& c : product.reach) {
    c = {c.row - row, c.row_end - row, c.column - column, c.column_end - column};
    product.rows = std::max(product.rows, c.row_end);
  }
  product.cells = cells_of(product.reach);
  return product;
}

ProductWork product_work(const Program& p, const Product& product, const Product::Cell& cell,
                         const Spaces& spaces) {
  ProductWork work;
  for (size_t t = 0; t < product.terms.size(); ++t) {
    const int32_t columns = product.reach[t].columns_of(cell);
    if (columns == 0) continue;
    const double rows = spaces.rows(p.instructions[product.terms[t]].space).size();
    work.needed += rows * cell.rows() * columns;
    work.all += rows * cell.rows() * cell.columns();
  }
  return work;
}

void join_cells(const Program& p, const Product& product, const Spaces& spaces,
                std::vector<Product::Cell>& cells) {
  constexpr double kFewZeros = 1.0 / 16;
  cells.clear();
  for (const Product::Cell& cell : product.cells) {
    if (!cells.empty() && cells.back().row == cell.row && cells.back().column_end == cell.column) {
      Product::Cell both = cells.back();
      both.column_end = cell.column_end;
      const ProductWork work = product_work(p, product, both, spaces);
      if (work.all - work.needed <= kFewZeros * work.all) {
        cells.back() = both;
        continue;
      }
    }
    cells.push_back(cell);
  }
}

}  // namespace cavs
