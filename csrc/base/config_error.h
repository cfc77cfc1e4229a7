// Error for an invalid setting; cavs.errors.ConfigError in Python.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace cavs {

struct ConfigError : std::invalid_argument {
  ConfigError(const std::string& what, std::string cure)
      : std::invalid_argument(what), hint(std::move(cure)) {}
  std::string hint;
};

}  // namespace cavs
