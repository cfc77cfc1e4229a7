// A map that keeps what was used last.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <utility>

namespace cavs::cuda {

template <class Key, class Value>
class Recent {
 public:
  explicit Recent(size_t most) : most_(most) {}

  // Null: it is not there. What is found is the last to go.
  Value* find(const Key& key) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return nullptr;
    order_.splice(order_.begin(), order_, found->second.place);
    return &found->second.value;
  }
  // The next one needs the room of another: that which was not used for the longest time.
  bool full() const { return entries_.size() >= most_; }
  void drop_oldest() {
    entries_.erase(order_.back());
    order_.pop_back();
  }
  // Of a key that is not there; the map is not full.
  Value& insert(const Key& key, Value value) {
    order_.push_front(key);
    return entries_.emplace(key, Entry{std::move(value), order_.begin()}).first->second.value;
  }
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    Value value;
    typename std::list<Key>::iterator place;
  };
  size_t most_;
  std::map<Key, Entry> entries_;
  std::list<Key> order_;  // from the last used to the first
};

}  // namespace cavs::cuda
