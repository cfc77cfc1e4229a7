#include "schedule/kinds.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <unordered_map>

namespace cavs {
namespace {

// Number the kinds of a batch by first occurrence.
class KindTable {
 public:
  int32_t id(uint64_t key) {
    Entry& cached = cache_[key * 0x9e3779b97f4a7c15u >> 60];  // most batches have few kinds
    if (cached.id < 0 || cached.key != key) {
      const auto [it, is_new] = ids_.try_emplace(key, static_cast<int32_t>(keys_.size()));
      if (is_new) keys_.push_back(key);
      cached = {key, it->second};
    }
    return cached.id;
  }

  const std::vector<uint64_t>& keys() const { return keys_; }

  // Kind numbers, sorted: by structure, kinds with children first, then by ascending key.
  PooledVector<int32_t> sorted() const {
    PooledVector<int32_t> ids(keys_.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::sort(ids.begin(), ids.end(), [&](int32_t i, int32_t j) {
      const uint64_t a = keys_[i], b = keys_[j];
      return std::tuple(structure_of(a), a % 2 == 0, a) <
             std::tuple(structure_of(b), b % 2 == 0, b);
    });
    return ids;
  }

 private:
  struct Entry {
    uint64_t key = 0;
    int32_t id = -1;
  };
  Entry cache_[16];
  std::unordered_map<uint64_t, int32_t> ids_;
  std::vector<uint64_t> keys_;
};

}  // namespace

Kinds classify(const GraphBatch& batch, const uint32_t* presence) {
  const Graph& in = *batch.all;
  Kinds kinds{PooledVector<int32_t>(in.num_vertices()), {}, {}};
  KindTable table;
  for (int32_t s = 0; s < batch.num_structures; ++s) {
    const uint64_t structure = static_cast<uint64_t>(s) << kStructureShift;
    for (int32_t v = batch.first_vertex(s); v < batch.first_vertex(s + 1); ++v) {
      const uint64_t present = presence ? presence[v] : 0;
      kinds.of_vertex[v] = table.id(structure + 2 * present + (in.offsets[v + 1] > in.offsets[v]));
    }
  }
  kinds.order = table.sorted();
  kinds.keys = table.keys();
  return kinds;
}

}  // namespace cavs
