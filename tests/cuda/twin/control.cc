// Functions for tests, in addition to the driver's entry points.

#include <sstream>

#include "device_state.h"

using namespace twin;

namespace {

std::string index_text(Index i) {
  return "[" + std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z) + "]";
}

const char* keep(std::string text) {  // valid until the next call on this thread
  static thread_local std::string kept;
  kept = std::move(text);
  return kept.c_str();
}

}  // namespace

TWIN_API int twin_set(const char* name, long long value) {
  const std::lock_guard<std::recursive_mutex> guard(device().lock);
  return device().set(name, value) ? 1 : 0;
}

TWIN_API void twin_reset() {
  const std::lock_guard<std::recursive_mutex> guard(device().lock);
  device().reset();
}

TWIN_API const char* twin_records() {
  const std::lock_guard<std::recursive_mutex> guard(device().lock);
  std::ostringstream out;
  const char* separator = "[";
  for (const auto& r : device().records) {
    out << separator << "{\"kind\":\"" << r->kind << "\",\"name\":\"" << r->name
        << "\",\"stream\":" << r->stream << ",\"priority\":" << r->priority
        << ",\"grid\":" << index_text(r->grid) << ",\"block\":" << index_text(r->block)
        << ",\"shared\":" << r->shared << ",\"arguments\":[" << r->arguments << "],\"to\":" << r->to
        << ",\"from\":" << r->from << ",\"bytes\":" << r->bytes << ",\"issued\":" << r->issued
        << ",\"ran\":" << r->ran << ",\"cooperative\":" << (r->cooperative ? "true" : "false")
        << "}";
    separator = ",";
  }
  out << (device().records.empty() ? "[]" : "]");
  return keep(out.str());
}

TWIN_API const char* twin_fault() {
  const std::lock_guard<std::recursive_mutex> guard(device().lock);
  return keep(device().fault.text);
}

TWIN_API const char* twin_guards() {
  const std::lock_guard<std::recursive_mutex> guard(device().lock);
  device().queue.finish_all();
  return keep(device().memory.violations());
}

TWIN_API const char* twin_live() {
  Device& d = device();
  const std::lock_guard<std::recursive_mutex> guard(d.lock);
  std::ostringstream out;
  out << "{\"bytes\":" << d.memory.used() << ",\"allocations\":" << d.memory.device_count()
      << ",\"pinned\":" << d.memory.pinned_count() << ",\"streams\":" << d.queue.live()
      << ",\"events\":" << d.events.size() << ",\"modules\":" << d.modules.size()
      << ",\"graphs\":" << d.graphs.size() + d.executables.size() << "}";
  return keep(out.str());
}

TWIN_API long long twin_heuristics() { return device().heuristics; }
