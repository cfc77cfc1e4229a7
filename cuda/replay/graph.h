// Commands that the driver was given once, to be done again by one call.
#pragma once

#include <memory>

#include "cuda/driver/device.h"

namespace cavs::cuda {

class Graph {
 public:
  // DeviceFault where the driver cannot make one of them; nothing is done in either case.
  Graph(std::shared_ptr<Device> device, const Commands& commands);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch();  // on the present lane

 private:
  std::shared_ptr<Device> device_;
  Handle executable_ = nullptr;
};

}  // namespace cavs::cuda
