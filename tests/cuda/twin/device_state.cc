#include "device_state.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace twin {

namespace {
thread_local CUcontext current_context = nullptr;
constexpr size_t kLongestLog = 200'000;
}  // namespace

CUcontext current() { return current_context; }
void set_current(CUcontext context) { current_context = context; }

Device& device() {
  static Device* const one = new Device;  // never destroyed: engines may outlive static objects
  return *one;
}

// CAVS_TWIN="capability=75,memory=1000000" sets up a device that no test reaches into, or one for a
// whole run of tests: "seed=3".
void Device::set_defaults() {
  settings = {};
  queue.set_seed(0);
  memory.capacity = size_t{1} << 36;
  const char* text = std::getenv("CAVS_TWIN");
  std::istringstream stream(text == nullptr ? "" : text);
  std::string item;
  while (std::getline(stream, item, ',')) {
    const size_t equals = item.find('=');
    if (equals == std::string::npos ||
        !set(item.substr(0, equals), std::atoll(item.c_str() + equals + 1))) {
      std::fprintf(stderr, "cavs twin: CAVS_TWIN has no setting %s\n", item.c_str());
      std::abort();
    }
  }
}

bool Device::set(const std::string& name, long long value) {
  if (name == "seed") {
    queue.set_seed(static_cast<uint64_t>(value));
  } else if (name == "memory") {
    memory.capacity = static_cast<size_t>(value);
  } else if (name == "init_error") {
    settings.init_error = value;
  } else if (name == "devices") {
    settings.devices = value;
  } else if (name == "driver_version") {
    settings.driver_version = value;
  } else if (name == "capability") {
    settings.capability = value;
  } else if (name == "multiprocessors") {
    settings.multiprocessors = value;
  } else if (name == "grid_y") {
    settings.grid_y = value;
  } else if (name == "exact_algorithms") {
    settings.exact_algorithms = value;
  } else if (name == "launch_error") {
    settings.launch_error = value;
  } else if (name == "launch_error_at") {
    settings.launch_error_at = value;
    launches = 0;
  } else if (name == "cudnn_version") {
    settings.cudnn_version = value;
  } else if (name == "cudnn_error") {
    settings.cudnn_error = value;
  } else if (name == "cudnn_error_at") {
    settings.cudnn_error_at = value;
    cudnn_calls = 0;
  } else {
    return false;
  }
  return true;
}

void Device::reset() {
  queue.finish_all();
  fault = {};
  records.clear();
  issued = ran = 0;
  set_defaults();
  memory.forget_violations();
}

void Device::fail(const Fault& what) {
  fault = what;
  std::fprintf(stderr, "cavs twin: %s\n", what.text.c_str());
  queue.drop_all();
}

OperationPointer Device::add(Stream* stream, Record record, std::function<void()> run,
                             OperationPointer after) {
  record.stream = stream->id;
  return queue.add(
      stream,
      [this, line = log(std::move(record)), run = std::move(run)] {
        line->ran = ran++;
        run();
      },
      std::move(after));
}

void Device::wait(Record record, const OperationPointer& target) {
  const auto line = log(std::move(record));
  queue.finish(target);
  line->ran = ran++;
}

std::shared_ptr<Record> Device::log(Record record) {
  record.issued = issued++;
  if (records.size() == kLongestLog) records.pop_front();
  return records.emplace_back(std::make_shared<Record>(std::move(record)));
}

}  // namespace twin
