// Parameters and optimiser states on the device; the arrays of the host follow when asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/driver/device.h"
#include "cuda/memory/step_outcomes.h"
#include "exec/executor.h"

namespace cavs::cuda {

template <class T>
class Parameters {
 public:
  Parameters(std::shared_ptr<Device> device, std::vector<Parameter<T>> host);

  const std::vector<int64_t>& sizes() const { return sizes_; }
  const std::vector<T*>& on_device() const { return addresses_; }
  size_t value_bytes() const { return values_.bytes(); }
  size_t state_bytes() const { return state_values_.bytes(); }
  // Where the states of each parameter stand on the device, null where the host has none. `owner`
  // keeps the host's arrays, which are written by download() as long as they count.
  using States = std::vector<std::pair<T*, T*>>;
  const States& states(const States& host, std::shared_ptr<const void> owner);

  // Before a run: what the host has written since goes up.
  void upload();
  // The device moves those parameters that are trained, unless it was told so before.
  void move(const std::vector<bool>& trained);
  // Of the training steps that move them.
  Outcomes& outcomes() { return outcomes_; }
  // The host's arrays are written from now on, or have been: they are what counts.
  void invalidate();
  // The same of the values of some, which the device does not move.
  void write(const std::vector<int32_t>& params);
  // The same of some rows of a table: the next run takes them up.
  void write_rows(int32_t param, const std::vector<int32_t>& rows, int64_t width);
  struct RowsWritten {
    int32_t param;
    int64_t width;
    std::vector<int32_t> rows;  // different from each other
    std::vector<T> values;
  };
  // Those of parameters that do not go up as a whole; gather_rows() fetches their values. They are
  // to go up before anything reads them, then forget_rows().
  void gather_rows();
  const std::vector<RowsWritten>& rows_written() const { return rows_written_; }
  void forget_rows() { rows_written_.clear(); }
  // Brings the host's arrays up to date, all or none; whether they were behind.
  bool download();
  // Steps that the host's arrays lack, if the device has failed and they will never come.
  std::optional<int64_t> lost() const;

 private:
  std::shared_ptr<Device> device_;
  std::vector<Parameter<T>> host_;
  std::vector<int64_t> sizes_;
  DeviceMemory values_, state_values_;
  std::vector<T*> addresses_;
  States host_states_, states_;
  std::shared_ptr<const void> owner_;  // of the arrays of host_states_
  // Of each parameter: the host's values count; the device has moved it since download().
  std::vector<bool> written_, moved_;
  bool states_written_ = false;
  std::vector<RowsWritten> rows_written_;
  Outcomes outcomes_;
};

}  // namespace cavs::cuda
