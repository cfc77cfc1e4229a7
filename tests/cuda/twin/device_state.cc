#include "device_state.h"

#include <chrono>
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

// CAVS_TWIN="capability=75,memory=1000000" configures a device in a process that a test starts, or
// "seed=3" a whole test run.
void Device::set_defaults() {
  settings = {};
  queue.set_seed(0);
  queue.keep_order(false);
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
  static const std::map<std::string, long long Settings::*> fields = {
      {"init_error", &Settings::init_error},
      {"devices", &Settings::devices},
      {"driver_version", &Settings::driver_version},
      {"capability", &Settings::capability},
      {"multiprocessors", &Settings::multiprocessors},
      {"blocks_each", &Settings::blocks_each},
      {"cooperative", &Settings::cooperative},
      {"shared_optin", &Settings::shared_optin},
      {"grid_y", &Settings::grid_y},
      {"exact_algorithms", &Settings::exact_algorithms},
      {"odd_strides", &Settings::odd_strides},
      {"other_sizes", &Settings::other_sizes},
      {"launch_error", &Settings::launch_error},
      {"launch_error_at", &Settings::launch_error_at},
      {"command_nanoseconds", &Settings::command_nanoseconds},
      {"node_nanoseconds", &Settings::node_nanoseconds},
      {"device_keeps_up", &Settings::device_keeps_up},
      {"cudnn_version", &Settings::cudnn_version},
      {"cudnn_error", &Settings::cudnn_error},
      {"cudnn_error_at", &Settings::cudnn_error_at},
  };
  static const std::set<std::string> failing = {
      "capture",       "cuStreamBeginCapture_v2",     "cuStreamEndCapture",
      "cuGraphLaunch", "cuGraphInstantiateWithFlags", "cuLaunchCooperativeKernel"};
  if (name == "launch_error_at") launches = 0;
  if (name == "cudnn_error_at") cudnn_calls = 0;
  if (name == "seed") {
    queue.set_seed(static_cast<uint64_t>(value));
  } else if (name == "order") {
    queue.keep_order(value != 0);
  } else if (name == "memory") {
    memory.capacity = static_cast<size_t>(value);
  } else if (const auto field = fields.find(name); field != fields.end()) {
    settings.*field->second = value;
  } else if (failing.count(name) != 0) {
    settings.errors[name] = value;
  } else {
    return false;
  }
  return true;
}

int Device::error(const std::string& name) const {
  const auto found = settings.errors.find(name);
  return found == settings.errors.end() ? 0 : static_cast<int>(found->second);
}

long long Device::most_shared() const {
  if (settings.shared_optin != 0) return settings.shared_optin;
  return settings.capability >= 90 ? 232448 : 166912;
}

double Device::seconds() const {
  using namespace std::chrono;
  if (settings.command_nanoseconds != 0 || settings.node_nanoseconds != 0)
    return static_cast<double>(clock) * 1e-9;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
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
  if (Capture* const capture = stream->captured.capture.get()) {
    capture->add(stream, std::move(record), std::move(run));
    return nullptr;
  }
  record.priority = stream->priority;
  return enqueue(stream, std::move(record), std::move(run), {std::move(after)},
                 settings.command_nanoseconds);
}

OperationPointer Device::enqueue(Stream* stream, Record record, std::function<void()> run,
                                 std::vector<OperationPointer> after, long long nanoseconds) {
  record.stream = stream->id;
  return queue.add(
      stream,
      [this, line = log(std::move(record)), run = std::move(run), nanoseconds] {
        line->ran = ran++;
        order.tell(line);
        run();
        clock += nanoseconds;
      },
      std::move(after));
}

bool Device::touch(const void* address, size_t bytes, bool write) {
  const std::string race = order.access(reinterpret_cast<uintptr_t>(address), bytes, write);
  if (!race.empty()) fail({kLaunchFailed, race});
  return race.empty();
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
