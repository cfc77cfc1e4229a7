// Commands captured as a CUDA graph, which one call launches.
#pragma once

#include <memory>

#include "cuda/driver/device.h"

namespace cavs::cuda {

class Graph {
 public:
  // Captures the commands without running them. Throws DeviceFault if the driver cannot.
  Graph(std::shared_ptr<Device> device, const Commands& commands);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch();  // on the current lane

 private:
  std::shared_ptr<Device> device_;
  Handle executable_ = nullptr;
};

}  // namespace cavs::cuda
