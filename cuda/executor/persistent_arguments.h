// The arguments of a persistent kernel, in the order in which cavs.codegen.persistent declares
// them.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/driver/commands.h"

namespace cavs::cuda {

class PersistentArguments {
 public:
  void clear() {
    words_.clear();
    ranges_.clear();
  }
  template <class A>
  void add(const A& argument) {
    static_assert(kPlainBytes<A>);
    const size_t begin = words_.size();
    words_.resize(begin + (sizeof(A) + sizeof(uint64_t) - 1) / sizeof(uint64_t));
    std::memcpy(words_.data() + begin, &argument, sizeof(A));
    ranges_.push_back({begin, sizeof(A)});
  }
  // Valid until the next add().
  const std::vector<Argument>& list() {
    list_.clear();
    for (const auto& [begin, bytes] : ranges_) list_.push_back({words_.data() + begin, bytes});
    return list_;
  }

 private:
  struct Range {
    size_t begin, bytes;  // begin: in words_
  };
  std::vector<uint64_t> words_;
  std::vector<Range> ranges_;
  std::vector<Argument> list_;
};

}  // namespace cavs::cuda
