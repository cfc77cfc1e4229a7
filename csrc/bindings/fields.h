// Readers of dicts and names that describe programs.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "exec/names.h"

namespace cavs {

// The enumerator called `name` among `names`, which are in the order of enumerators.
template <class E>
E parse(const std::string& name, std::initializer_list<const char*> names, const char* what) {
  int i = 0;
  std::string all;
  for (const char* n : names) {
    if (name == n) return static_cast<E>(i);
    all += std::string(i++ ? ", " : "") + n;
  }
  throw pybind11::value_error(std::string(what) + " '" + name + "' is none of " + all);
}
// The same among the names in exec/names.h.
template <class E>
E parse(const std::string& name, const char* what) {
  return std::apply([&](auto... names) { return parse<E>(name, {names...}, what); },
                    std::to_array(Names<E>::all));
}
// A dict with defaults that rejects unknown keys.
class Fields {
 public:
  Fields(const pybind11::dict& dict, std::initializer_list<const char*> known) : dict_(dict) {
    for (const auto& [key, value] : dict) {
      const std::string name = pybind11::str(key);
      if (std::find(known.begin(), known.end(), name) == known.end()) {
        throw pybind11::key_error("unknown key '" + name + "'");
      }
    }
  }
  template <class V>
  V get(const char* key, V missing) const {
    return dict_.contains(key) ? dict_[key].cast<V>() : std::move(missing);
  }
  template <class V>
  V need(const char* key) const {
    if (!dict_.contains(key)) throw pybind11::key_error(std::string("missing key '") + key + "'");
    return dict_[key].cast<V>();
  }
  bool has(const char* key) const { return dict_.contains(key) && !dict_[key].is_none(); }

 private:
  const pybind11::dict& dict_;
};

// A program under construction; immutable once finished.
struct Builder {
  std::shared_ptr<Program> program = std::make_shared<Program>();
  bool finished = false;

  Program& open() {
    if (finished) throw pybind11::value_error("the program is finished");
    return *program;
  }
  template <class V>
  static int32_t add(std::vector<V>& to, V value) {
    to.push_back(std::move(value));
    return static_cast<int32_t>(to.size()) - 1;
  }
};

}  // namespace cavs
