#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "harness/device/device.h"
#include "sharding/communicator.h"
#include "sharding/partition.h"
#include "sharding/sharding_options.h"

namespace assay {

/// A parameter that a unit is to hold. `value` is set to a leaf tensor whose memory is part of a flat buffer.
struct FlatParameter {
  std::string name;
  std::vector<std::int64_t> shape;
  bool decayed = true;
  at::Tensor* value = nullptr;
  bool trainable = true;
};

/// Parameters of one unit that are alike, all trained or all frozen, in one flat buffer. Each parameter's value, and
/// grad() if it is trained, are views of the flat buffers for as long as the group lives; with sharded parameters and
/// gradients the memory behind the views comes and goes.
///
/// What this rank keeps for good is the *owned* part of each flat buffer: everything, or its shard where the options
/// say so. Frozen groups have no gradients, and their master is the parameter itself.
class FlatGroup {
 public:
  /// Allocates what is kept (zeros) and sets the values of `parameters`, which must outlive the group.
  FlatGroup(const std::vector<FlatParameter>& parameters, bool trainable, const ShardingOptions& options,
            Communicator& communicator, Device& device);

  bool trainable() const { return trainable_; }
  const FlatLayout& layout() const { return layout_; }

  std::int64_t owned_begin() const { return owned_begin_; }
  std::int64_t owned_numel() const { return owned_numel_; }
  const at::Tensor& master() const { return master_; }      ///< [owned_numel], master dtype
  const at::Tensor& gradient() const { return gradient_; }  ///< [owned_numel], gradient dtype; undefined if frozen

  /// This rank's part of a tensor [owned_numel]: a view [shard_numel].
  at::Tensor shard_of(const at::Tensor& owned) const;

  /// Elements of one parameter, in row order.
  struct Part {
    std::int64_t first = 0;
    at::Tensor values;  ///< a view, flat; maybe empty
  };
  /// What an owned tensor holds of a parameter.
  Part part_of(const at::Tensor& owned, std::size_t index) const;

  /// Writes a parameter's values (any float dtype, its shape) into the owned part. publish() must follow.
  void write_parameter(std::size_t index, const at::Tensor& values) const;

  /// Collective: the weights that the network reads follow the masters, on all ranks: cast, and gathered where only
  /// the optimizer is sharded. finish_publish() waits for it.
  void start_publish();
  void finish_publish() { gathering_.wait(); }

  /// Collective: after the shards of masters were written: gathers an owned tensor that is whole.
  void gather_owned(const at::Tensor& owned) const;

  /// Collective: takes memory for the weights and starts to fill it. Only sharded parameters; else nothing. What is
  /// there already stays.
  void start_gather();
  void finish_gather() { gathering_.wait(); }
  /// Gives the memory of gathered weights back.
  void free();

  /// The gradient of this micro-step is added to from now on: takes zeroed memory if gradients are sharded.
  void begin_gradients();
  void zero_gradient();

  /// Collective: sums the gradient over the ranks, in three steps, each of which waits for the one before. Between them
  /// the ranks compute. After the last one gradient() holds the sum (added to what it held if gradients are sharded).
  void start_reduce();
  void sum_received();
  void finish_reduce();
  /// Gives up a gradient that was begun.
  void drop_gradients();

 private:
  at::Tensor own_part(const at::Tensor& flat) const;

  FlatLayout layout_;
  bool trainable_;
  ShardingOptions options_;
  Communicator& communicator_;
  std::int64_t owned_begin_ = 0;
  std::int64_t owned_numel_ = 0;
  std::vector<std::int64_t> numels_;

  at::Tensor weights_;  ///< [layout.numel], compute dtype: what values are views of
  at::Tensor master_;
  at::Tensor gradients_;  ///< [layout.numel]: what grad()s are views of
  at::Tensor gradient_;
  at::Tensor sent_;    ///< [layout.numel], reduce dtype, while a reduction runs
  at::Tensor buffer_;  ///< what its communicator takes beside it, if anything
  PendingOperation gathering_;
  PendingOperation reducing_;
  bool gathered_ = false;
  bool gradients_begun_ = false;
};

}  // namespace assay
