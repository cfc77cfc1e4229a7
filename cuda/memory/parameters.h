// Parameters and optimiser states on the device. The host's arrays are updated on demand.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/driver/device.h"
#include "cuda/memory/allocation.h"
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
  // Device addresses of the states of each parameter, null where the host has none. `owner` keeps
  // the host's arrays alive, into which download() writes.
  using States = std::vector<StateArrays<T>>;
  const States& states(const States& host, std::shared_ptr<const void> owner);

  // Before a run: upload what the host has written since the last one.
  void upload();
  // Mark the parameters of `trained` as changed by the device.
  void mark_moved(const std::vector<bool>& trained);
  // Outcomes of the training steps that change the parameters.
  StepOutcomes& outcomes() { return outcomes_; }
  // The host's arrays are authoritative from now on: all of them are uploaded again.
  void invalidate();
  // invalidate() for the values of some parameters, which the device does not change.
  void write(const std::vector<int32_t>& params);
  // invalidate() for some rows of a table, which the next run uploads.
  void write_rows(int32_t param, const std::vector<int32_t>& rows, int64_t width);
  struct RowsWritten {
    int32_t param;
    int64_t width;
    std::vector<int32_t> rows;  // distinct
    std::vector<T> values;
  };
  // Written rows of parameters that are not uploaded as a whole; gather_rows() collects their
  // values. They must be uploaded before anything reads them, then cleared by forget_rows().
  void gather_rows();
  const std::vector<RowsWritten>& rows_written() const { return rows_written_; }
  void forget_rows() { rows_written_.clear(); }
  // Update the host's arrays, all or none. True if they were out of date.
  bool download();
  // Number of steps that the host's arrays lack for good; nullopt while the device works.
  std::optional<int64_t> lost() const;

 private:
  std::shared_ptr<Device> device_;
  std::vector<Parameter<T>> host_;
  std::vector<int64_t> sizes_;
  DeviceMemory values_, state_values_;
  std::vector<T*> addresses_;
  States host_states_, states_;
  std::shared_ptr<const void> owner_;  // owner of the arrays in host_states_
  // By parameter: the host's values are authoritative; the device has changed it since download().
  std::vector<bool> written_, moved_;
  bool states_written_ = false;
  std::vector<RowsWritten> rows_written_;
  StepOutcomes outcomes_;
};

}  // namespace cavs::cuda
