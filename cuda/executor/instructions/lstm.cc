// lstm, lstm_grad, lstm_weight_grad: an LSTM over a batch of chains by cuDNN, and its gradients.
#include <stdexcept>

#include "cuda/executor/launchers.h"
#include "exec/spaces.h"

namespace cavs::cuda {

template <class T>
void Executor<T>::plan_lstms(const CompiledProgram<T>& compiled) {
  const Program& p = *program_;
  lstm_of_instruction_.assign(p.instructions.size(), -1);
  for (size_t id = 0; id < p.instructions.size(); ++id) {
    const Instruction& in = p.instructions[id];
    if (in.type != InstructionType::kLstm) continue;
    if (compiled.cudnn == nullptr) {
      throw std::invalid_argument("[" + in.label + "] needs cuDNN, and was given none");
    }
    bool backward = false;
    for (size_t i = 0; i < p.instructions.size(); ++i) {
      const Instruction& other = p.instructions[i];
      if (traits_of(other).cut != Cut::kWhole || other.argument != in.argument) continue;
      lstm_of_instruction_[i] = static_cast<int32_t>(lstms_.size());
      backward |= other.type == InstructionType::kLstmGrad;
    }
    lstms_.push_back(std::make_unique<Lstm<T>>(
        device_, library_, compiled.cudnn, p.weights[in.weight], in.inputs[0].width, in.out.width,
        parameters_->on_device(), grads_, backward));
  }
}

template <class T>
void Executor<T>::bind_lstms() {
  if (lstms_.empty()) return;
  chains_ = make_chains(*schedule_);
  for (const auto& lstm : lstms_) lstm->bind(chains_);
}

template <class T>
void Executor<T>::stage_chains() {
  if (lstms_.empty()) return;
  const auto add = [&](const std::vector<int32_t>& values) {
    return staging_.add(std::span<const int32_t>(values));
  };
  chains_at_ = {add(chains_.row_of), add(chains_.position_of), add(chains_.lengths)};
}

template <class T>
void Executor<T>::resolve_chains() {
  const auto [rows, positions, lengths] = chains_at_;
  for (const auto& lstm : lstms_) {
    lstm->set_arrays({staging_.at<int32_t>(rows), staging_.at<int32_t>(positions),
                      staging_.at<int32_t>(lengths)});
  }
}

template <class T>
void Launchers<T>::lstm(Executor<T>& e, int32_t id, const LaunchRows&) {
  const Lstm<T>& lstm = *e.lstms_[e.lstm_of_instruction_[id]];
  lstm.run(e.source(e.bound_.instructions[id].first, 0), e.target(id, 0));
}

template <class T>
void Launchers<T>::lstm_grad(Executor<T>& e, int32_t id, const LaunchRows&) {
  const Lstm<T>& lstm = *e.lstms_[e.lstm_of_instruction_[id]];
  lstm.grad(e.source(e.bound_.instructions[id].first + 1, 0), e.target(id, 0));
}

template <class T>
void Launchers<T>::lstm_weight_grad(Executor<T>& e, int32_t id, const LaunchRows&) {
  e.lstms_[e.lstm_of_instruction_[id]]->weight_grad(e.program_->instructions[id].argument2);
}

CAVS_INSTANTIATE_LAUNCHER(lstm)
CAVS_INSTANTIATE_LAUNCHER(lstm_grad)
CAVS_INSTANTIATE_LAUNCHER(lstm_weight_grad)

#define CAVS_INSTANTIATE(T)                                         \
  template void Executor<T>::plan_lstms(const CompiledProgram<T>&); \
  template void Executor<T>::bind_lstms();                          \
  template void Executor<T>::stage_chains();                        \
  template void Executor<T>::resolve_chains();
CAVS_INSTANTIATE(float)
CAVS_INSTANTIATE(double)
#undef CAVS_INSTANTIATE

}  // namespace cavs::cuda
