#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "sharding/flat_unit.h"

namespace assay {

/// What a unit is made of.
struct UnitParameters {
  std::string name;
  std::vector<FlatParameter> parameters;
};

/// All units of a network, gathered, freed and reduced as the network goes through them: forward in their order,
/// backward against it. While a unit computes the next one is gathered, and the gradient of the one before is on its
/// way. One micro-step is: begin_micro_step, for each unit before_forward .. after_forward, before_backward ..
/// after_backward, then end_micro_step. Every method is collective where units are sharded or gradients reduced.
class ShardedUnits {
 public:
  /// Allocates what every rank keeps. `units` hold pointers to values that must outlive this.
  ShardedUnits(const std::vector<UnitParameters>& units, const ShardingOptions& options, Communicator& communicator,
               Device& device);

  const ShardingOptions& options() const { return options_; }
  std::size_t size() const { return units_.size(); }
  FlatUnit& operator[](std::size_t unit) { return *units_[unit]; }
  const FlatUnit& operator[](std::size_t unit) const { return *units_[unit]; }

  /// Back to the state between steps, whatever came before (an error in the middle of a micro-step, too), with
  /// gradients zero.
  void begin_step();

  /// `last`: the last micro-step of the step, in which gradients that are whole are summed over the ranks.
  void begin_micro_step(bool last) {
    last_micro_step_ = last;
    forward_at_ = 0;
  }

  void before_forward(std::size_t unit);
  void after_forward(std::size_t unit);
  void begin_gradients(std::size_t unit);
  void before_backward(std::size_t unit);
  void after_backward(std::size_t unit);

  /// Waits for what is still on its way.
  void end_micro_step();

  /// As after_backward, but gives the gradient up.
  void drop_gradients(std::size_t unit);

  /// The network's weights follow the masters. Memory: none.
  void publish();

 private:
  void start_gather(std::size_t unit);
  void finish_gather(std::size_t unit);
  void free(std::size_t unit);
  void finish_oldest_sum();

  ShardingOptions options_;
  std::vector<std::unique_ptr<FlatUnit>> units_;
  std::deque<FlatGroup*> sums_due_;     ///< parts are on their way
  std::deque<FlatGroup*> gathers_due_;  ///< sums are on their way
  bool last_micro_step_ = true;
  std::size_t forward_at_ = 0;  ///< the unit that forward has reached; 0 after its end
};

}  // namespace assay
