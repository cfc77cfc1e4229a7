// A map that evicts the least recently used entry.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <utility>

namespace cavs::cuda {

template <class Key, class Value>
class LruCache {
 public:
  explicit LruCache(size_t most) : most_(most) {}

  // Return the value and mark it as used; null if the key is absent.
  Value* find(const Key& key) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return nullptr;
    order_.splice(order_.begin(), order_, found->second.position);
    return &found->second.value;
  }
  // True if drop_oldest() must precede the next insert().
  bool full() const { return entries_.size() >= most_; }
  void drop_oldest() {
    entries_.erase(order_.back());
    order_.pop_back();
  }
  // Insert an absent key into a map that is not full.
  Value& insert(const Key& key, Value value) {
    order_.push_front(key);
    return entries_.emplace(key, Entry{std::move(value), order_.begin()}).first->second.value;
  }
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    Value value;
    typename std::list<Key>::iterator position;
  };
  size_t most_;
  std::map<Key, Entry> entries_;
  std::list<Key> order_;  // most recently used first
};

}  // namespace cavs::cuda
