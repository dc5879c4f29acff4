// What of a trainer goes into a checkpoint, comes back out of one, and is compared.
#include <ATen/ATen.h>

#include <array>

#include "harness/core/xxh3.h"
#include "harness/train/trainer.h"

namespace assay {
namespace {

class TensorHash : public Xxh3 {
 public:
  using Xxh3::add;
  void add(const at::Tensor& tensor) { add(tensor.const_data_ptr(), tensor.nbytes()); }  // contiguous, in host memory
};

}  // namespace

std::vector<StateTensor> Trainer::state_tensors() {
  const UntrackedScope untracked;
  random_state_ = generator_.get_state();
  std::vector<StateTensor> tensors;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    for (const auto& group : units_[i].groups()) {
      const std::string& name = units_[i].name();
      if (!group->trainable()) {
        tensors.push_back({"frozen." + name, group->shard_of(group->master())});
        continue;
      }
      tensors.push_back({"parameters." + name, group->shard_of(group->master())});
      tensors.push_back({"exp_avg." + name, group->shard_of(optimizer_.moments(i).exp_avg)});
      tensors.push_back({"exp_avg_sq." + name, group->shard_of(optimizer_.moments(i).exp_avg_sq)});
    }
  }
  tensors.push_back({"random_state", random_state_});
  return tensors;
}

void Trainer::finish_restore(const Progress& progress) {
  generator_.set_state(random_state_);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    for (const auto& group : units_[i].groups()) {
      group->gather_owned(group->master());
      if (!group->trainable()) continue;
      group->gather_owned(optimizer_.moments(i).exp_avg);
      group->gather_owned(optimizer_.moments(i).exp_avg_sq);
    }
  }
  publish_parameters();
  progress_ = progress;
  step_in_work_ = progress.step;
  scaler_.set_state(progress.loss_scaler);
  optimizer_.set_num_steps(progress.step - progress.skipped_steps);
}

std::string Trainer::parameters_hash() const {
  TensorHash hash;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    for (const auto& group : units_[i].groups()) hash.add(group->master());
  }
  return hash.text();
}

std::string Trainer::state_hash() const {
  TensorHash hash;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    for (const auto& group : units_[i].groups()) {
      hash.add(group->master());
      if (!group->trainable()) continue;
      hash.add(optimizer_.moments(i).exp_avg);
      hash.add(optimizer_.moments(i).exp_avg_sq);
    }
  }
  const std::array<std::int64_t, 5> counters{progress_.step, progress_.samples, progress_.skipped_steps,
                                             progress_.loss_scaler.good_steps, optimizer_.num_steps()};
  hash.add(counters.data(), sizeof(counters));
  hash.add(&progress_.loss_scaler.scale, sizeof(double));
  return hash.text();
}

}  // namespace assay
