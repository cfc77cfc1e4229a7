#include "queue.h"

#include <algorithm>

namespace twin {

Stream* Queue::create(bool blocking, int priority) {
  streams_.push_back(std::make_unique<Stream>(Stream{next_id_++, blocking, priority}));
  return streams_.back().get();
}

Stream* Queue::chain(int id, size_t number) {
  streams_.push_back(std::make_unique<Stream>(Stream{id, false, 0, number + 1, true}));
  return streams_.back().get();
}

Stream* Queue::find(const void* handle) {
  if (handle == nullptr) return streams_.front().get();
  for (const auto& stream : streams_)
    if (stream.get() == handle && !stream->destroyed) return stream.get();
  return nullptr;
}

size_t Queue::live() const {
  const auto lives = [](const auto& stream) { return !stream->destroyed; };
  return static_cast<size_t>(std::count_if(streams_.begin(), streams_.end(), lives)) - 1;
}

OperationPointer Queue::add(Stream* stream, std::function<void()> run,
                            std::vector<OperationPointer> after) {
  auto operation = std::make_shared<Operation>();
  operation->run = std::move(run);
  operation->number = issued_++;
  Clock before;
  if (stream->last != nullptr) order_.join(before, stream->last->place);
  const auto wait_for = [&](const OperationPointer& other) {
    if (other == nullptr) return;
    order_.join(before, other->place);
    if (!other->done) operation->after.push_back(other);
  };
  for (const OperationPointer& other : after) wait_for(other);
  Stream* const standard = streams_.front().get();
  if (stream == standard) {
    for (const auto& other : streams_)
      if (other->blocking && other.get() != standard) wait_for(other->last);
  } else if (stream->blocking) {
    wait_for(standard->last);
  }
  if (order_.on()) operation->place = order_.add(std::move(before), {stream->id, stream->chain});
  stream->pending.push_back(operation);
  stream->last = operation;
  return operation;
}

void Queue::step(const Stream* target, unsigned policy) {
  std::vector<Stream*> ready;
  for (const auto& stream : streams_) {
    if (stream->pending.empty()) continue;
    const auto& after = stream->pending.front()->after;
    if (std::all_of(after.begin(), after.end(), [](const auto& o) { return o->done; }))
      ready.push_back(stream.get());
  }
  auto chosen = std::min_element(ready.begin(), ready.end(), [](Stream* a, Stream* b) {
    return a->pending.front()->number < b->pending.front()->number;
  });
  if (seed_ != 0) {
    // A missing wait shows best if one stream runs far ahead of another.
    const auto of_target = std::find(ready.begin(), ready.end(), target);
    if (policy == 0 && of_target != ready.end()) {
      chosen = of_target;
    } else {
      if (policy == 1 && of_target != ready.end() && ready.size() > 1) ready.erase(of_target);
      chosen = ready.begin() + static_cast<std::ptrdiff_t>(random_() % ready.size());
    }
  }
  Stream* const stream = *chosen;
  const OperationPointer operation = stream->pending.front();
  stream->pending.pop_front();
  order_.run(operation->place);
  operation->run();
  operation->run = nullptr;
  operation->after.clear();
  operation->done = true;
  if (stream->destroyed && stream->pending.empty())
    std::erase_if(streams_, [stream](const auto& s) { return s.get() == stream; });
}

const Stream* Queue::stream_of(const OperationPointer& operation) const {
  for (const auto& stream : streams_)
    if (std::find(stream->pending.begin(), stream->pending.end(), operation) !=
        stream->pending.end())
      return stream.get();
  return nullptr;
}

unsigned Queue::policy() { return seed_ == 0 ? 0 : static_cast<unsigned>(random_() % 3); }

void Queue::finish(const OperationPointer& target) {
  if (target == nullptr) return;
  waited(*target);
  if (target->done) return;
  const Stream* const of_target = stream_of(target);
  const unsigned chosen = policy();
  while (!target->done) step(of_target, chosen);
}

void Queue::advance(const OperationPointer& target) {
  if (target != nullptr && !target->done) step(stream_of(target), policy());
}

void Queue::finish_all() {
  std::vector<OperationPointer> last;
  for (const auto& stream : streams_)
    if (stream->last != nullptr) last.push_back(stream->last);
  for (const auto& operation : last) finish(operation);
}

void Queue::keep_order(bool on) {
  finish_all();
  order_.start(on);
}

void Queue::drop_all() {
  for (const auto& stream : streams_) {
    for (const auto& operation : stream->pending) {
      operation->run = nullptr;
      operation->after.clear();
      operation->done = true;
    }
    stream->pending.clear();
  }
  std::erase_if(streams_, [](const auto& s) { return s->destroyed; });
}

}  // namespace twin
