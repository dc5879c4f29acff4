#pragma once

#include <optional>
#include <string>

#include "harness/device/device.h"
#include "model/transformer.h"
#include "model/unit_hooks.h"
#include "sharding/communicator.h"
#include "sharding/sharded_units.h"

namespace assay {

/// Looks for the first tensor that is not finite: the weights that a rank owns, then in the order of computation
/// weights as the network reads them and outputs unit by unit, and gradients before they are summed over the ranks.
/// Hooks of the network for a step that is done again for that; the gradients are given up.
class NotFiniteFinder final : public UnitHooks {
 public:
  NotFiniteFinder(Transformer& model, ShardedUnits& units, Device& device);

  struct First {
    int rank = 0;
    std::string tensor;  ///< "the output of model.layers.3"
  };
  /// Collective: weights go before outputs, outputs before gradients, and then lower ranks before higher; nothing if no
  /// rank found one.
  std::optional<First> first(Communicator& communicator) const;

  void before_forward(std::size_t unit) override;
  void after_forward(std::size_t unit, const at::Tensor& output) override;
  void before_gradients(std::size_t unit) override { units_.begin_gradients(unit); }
  void before_backward(std::size_t unit) override { units_.before_backward(unit); }
  void after_backward(std::size_t unit) override;

 private:
  enum class Kind { own_weight, weight, output, gradient, nothing };
  struct Found {
    Kind kind = Kind::nothing;
    std::size_t unit = 0;
    std::size_t parameter = 0;
  };
  void look_at(const at::Tensor& tensor, const Found& where);
  std::string text_of(const Found& found) const;

  Transformer& model_;
  ShardedUnits& units_;
  Device& device_;
  Found found_;
};

}  // namespace assay
