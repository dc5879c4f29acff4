#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "harness/device/device.h"
#include "model/block_checkpoint.h"
#include "model/functions.h"
#include "model/model_config.h"
#include "model/unit_hooks.h"

namespace assay {

/// A named weight. The transformer declares it; whoever owns the memory (the sharding) sets `value`, a leaf of this
/// shape that requires a gradient or not, fp32, bf16 or fp16: the dtype the network computes in, the same for all.
struct Parameter {
  std::string name;  ///< Hugging Face's key
  std::vector<std::int64_t> shape;
  at::Tensor value;

  /// Weight decay applies to matrices only.
  bool decayed() const { return shape.size() >= 2; }
  std::int64_t numel() const;
};

/// A part of the network that is gathered and freed as one.
struct Unit {
  std::string name;
  std::vector<Parameter> parameters;
};

struct TransformerOptions {
  ops::Kernels kernels;
  std::int64_t sequence_length = 128;
  std::int64_t loss_chunk_tokens = 1024;
  BlockCheckpointing checkpointing = BlockCheckpointing::none;
};

/// Decoder-only network of the Llama family: units embedding, one a block, head. With tied embeddings the head unit has
/// no matrix of its own and reads the embedding's. Not copyable: units hold what others point to.
class Transformer {
 public:
  /// Declares the units and makes the rotary tables on the device. Throws Error{recipe} if the sequence is longer than
  /// max_position_embeddings, or attention cannot take heads of this size.
  Transformer(const ModelConfig& config, const TransformerOptions& options, Device& device);
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;

  std::vector<Unit>& units() { return units_; }
  const ModelConfig& config() const { return config_; }
  const TransformerOptions& options() const { return options_; }

  /// Told of every use of the weights from now on; nullptr: nobody. Not owned; must outlive the graphs made meanwhile.
  void set_hooks(UnitHooks* hooks) { hooks_ = hooks; }

  /// Weighted sum of token losses, fp64 [1]; see ops::linear_cross_entropy for targets, weights, grad_scale and the
  /// rule on backward. input_ids int64 [B, L], targets int64 [B * L], weights fp32 [B * L]. The transformer must
  /// outlive the graph.
  at::Tensor loss(const at::Tensor& input_ids, const at::Tensor& targets, const at::Tensor& weights,
                  double grad_scale = 1) const;

  /// Adds the gradients of what loss() returned to the weights' grad(). Throws what an operator or a hook throws; then
  /// gradients are incomplete, and nothing else is left behind.
  void backward(const at::Tensor& loss) const;

  /// Logits fp32 [B, L, V] for input_ids int64 [B, L]; not differentiable.
  at::Tensor logits(const at::Tensor& input_ids) const;

 private:
  at::Tensor block(std::size_t index, const at::Tensor& x) const;
  CheckpointedBlock::Body block_body(const Unit& unit, const at::Tensor& x, ActivationTape* tape) const;
  at::Tensor attention(const Unit& unit, const at::Tensor& x, ActivationTape* tape) const;
  at::Tensor embedding(const at::Tensor& input_ids) const;
  at::Tensor hidden_states(const at::Tensor& input_ids) const;
  const at::Tensor& head_weight() const;

  template <class Compute>
  at::Tensor run_unit(std::size_t index, Compute compute) const;
  template <class Compute>
  at::Tensor run_head(const at::Tensor& x, Compute compute) const;

  ModelConfig config_;
  TransformerOptions options_;
  std::vector<Unit> units_;
  at::Tensor cos_;
  at::Tensor sin_;
  UnitHooks* hooks_ = nullptr;
};

/// Sets one parameter to what transformers' initialization gives it: norms 1, matrices normal(0, initializer_range)
/// drawn from `generator`. Parameters must be initialized in the order of units(), so that values depend on the seed
/// alone.
void initialize_parameter(Parameter& parameter, const ModelConfig& config, at::Generator generator);

}  // namespace assay
