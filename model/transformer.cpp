#include "model/transformer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "harness/core/error.h"
#include "harness/core/memory_scope.h"

namespace assay {
namespace {

// The order of the parameters in a block; see block_unit().
enum BlockParameter { input_norm, q_proj, k_proj, v_proj, o_proj, post_norm, gate_proj, up_proj, down_proj };

Unit block_unit(const ModelConfig& config, std::int64_t index) {
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t queries = config.num_attention_heads * config.head_dim;
  const std::int64_t keys = config.num_key_value_heads * config.head_dim;
  return {prefix.substr(0, prefix.size() - 1),
          {{prefix + "input_layernorm.weight", {hidden}, {}},
           {prefix + "self_attn.q_proj.weight", {queries, hidden}, {}},
           {prefix + "self_attn.k_proj.weight", {keys, hidden}, {}},
           {prefix + "self_attn.v_proj.weight", {keys, hidden}, {}},
           {prefix + "self_attn.o_proj.weight", {hidden, queries}, {}},
           {prefix + "post_attention_layernorm.weight", {hidden}, {}},
           {prefix + "mlp.gate_proj.weight", {config.intermediate_size, hidden}, {}},
           {prefix + "mlp.up_proj.weight", {config.intermediate_size, hidden}, {}},
           {prefix + "mlp.down_proj.weight", {hidden, config.intermediate_size}, {}}}};
}

std::vector<Unit> declare_units(const ModelConfig& config) {
  std::vector<Unit> units;
  units.push_back({"embedding", {{"model.embed_tokens.weight", {config.vocab_size, config.hidden_size}, {}}}});
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) units.push_back(block_unit(config, i));
  Unit head{"head", {{"model.norm.weight", {config.hidden_size}, {}}}};
  if (!config.tie_word_embeddings) {
    head.parameters.push_back({"lm_head.weight", {config.vocab_size, config.hidden_size}, {}});
  }
  units.push_back(std::move(head));
  return units;
}

void check_heads(const ModelConfig& config, ops::AttentionKernel kernel) {
  if (kernel == ops::AttentionKernel::flash_cpu) return;
  constexpr std::int64_t kMultiple = 8;
  constexpr std::int64_t kLargestOfFlash = 256;
  const bool too_large = kernel == ops::AttentionKernel::flash_cuda && config.head_dim > kLargestOfFlash;
  if (config.head_dim % kMultiple == 0 && !too_large) return;
  throw Error(ErrorKind::recipe, "model.attention: " + std::string(ops::name_of(kernel)) +
                                     " takes heads whose size is a multiple of 8" + (too_large ? ", at most 256" : "") +
                                     "; the model's head_dim is " + std::to_string(config.head_dim));
}

// After an error autograd's queue holds what was still to be done, with its gradients, until the next backward on this
// thread throws it out.
void drop_pending_gradients(const at::Tensor& loss) {
  const UntrackedScope untracked;
  loss.detach().requires_grad_().backward();
}

}  // namespace

std::int64_t Parameter::numel() const {
  std::int64_t product = 1;
  for (const auto size : shape) product *= size;
  return product;
}

Transformer::Transformer(const ModelConfig& config, const TransformerOptions& options, Device& device)
    : config_(config), options_(options), units_(declare_units(config)) {
  require_trained(config);
  if (options.sequence_length > config.max_position_embeddings) {
    throw Error(ErrorKind::recipe, "data.sequence_length " + std::to_string(options.sequence_length) +
                                       " is longer than the model's max_position_embeddings " +
                                       std::to_string(config.max_position_embeddings));
  }
  check_heads(config, options.kernels.attention);
  const auto frequencies = rotary_frequencies(config.rope, config.head_dim);
  const auto table = [&](float (*function)(float)) {
    const auto values = [&] {
      std::vector<float> result;
      for (std::int64_t position = 0; position < options.sequence_length; ++position) {
        for (const float frequency : frequencies) result.push_back(function(static_cast<float>(position) * frequency));
      }
      return result;
    };
    return device.upload(values, {options.sequence_length, 1, static_cast<std::int64_t>(frequencies.size())});
  };
  cos_ = table(std::cos);
  sin_ = table(std::sin);
}

at::Tensor Transformer::attention(const Unit& unit, const at::Tensor& x, ActivationTape* tape) const {
  const auto& weights = unit.parameters;
  const auto heads = [&](const at::Tensor& y, std::int64_t count) {
    return y.view({y.size(0), y.size(1), count, config_.head_dim});
  };
  const auto normed = ops::rms_norm(x, weights[input_norm].value, config_.rms_norm_eps, options_.kernels);
  const auto projected = ops::linears(
      normed.normed, {weights[q_proj].value, weights[k_proj].value, weights[v_proj].value}, options_.kernels, tape);
  const at::Tensor cos = cos_.narrow(0, 0, x.size(1));
  const at::Tensor sin = sin_.narrow(0, 0, x.size(1));
  const at::Tensor query = ops::rotary(heads(projected[0], config_.num_attention_heads), cos, sin);
  const at::Tensor key = ops::rotary(heads(projected[1], config_.num_key_value_heads), cos, sin);
  const at::Tensor value = heads(projected[2], config_.num_key_value_heads);
  const at::Tensor attended = ops::causal_attention(options_.kernels.attention, query, key, value, tape);
  return normed.residual + ops::linear(attended, weights[o_proj].value, options_.kernels, tape);
}

CheckpointedBlock::Body Transformer::block_body(const Unit& unit, const at::Tensor& x, ActivationTape* tape) const {
  const auto& weights = unit.parameters;
  const auto normed =
      ops::rms_norm(attention(unit, x, tape), weights[post_norm].value, config_.rms_norm_eps, options_.kernels);
  const auto wide =
      ops::linears(normed.normed, {weights[gate_proj].value, weights[up_proj].value}, options_.kernels, tape);
  return {ops::swiglu(wide[0], wide[1]), normed.residual};
}

at::Tensor Transformer::block(std::size_t index, const at::Tensor& x) const {
  const Unit& unit = units_[index];
  if (options_.checkpointing == BlockCheckpointing::none || !at::GradMode::is_enabled()) {
    const auto body = block_body(unit, x, nullptr);
    return body.residual + ops::linear(body.activated, unit.parameters[down_proj].value, options_.kernels);
  }
  CheckpointedBlock block;
  block.body = [this, &unit](const at::Tensor& input, ActivationTape* tape) { return block_body(unit, input, tape); };
  block.last_weight = [&unit] { return unit.parameters[down_proj].value; };
  block.kernels = options_.kernels;
  if (hooks_ != nullptr) {
    block.before_recompute = [hooks = hooks_, index] { hooks->before_recompute(index); };
    block.after_recompute = [hooks = hooks_, index] { hooks->after_recompute(index); };
  }
  return run_checkpointed(block, options_.checkpointing == BlockCheckpointing::selective, x);
}

at::Tensor Transformer::embedding(const at::Tensor& input_ids) const {
  const at::Tensor x = ops::embedding(units_.front().parameters[0].value, input_ids);
  // Where the embedding is frozen, the blocks above are differentiated all the same, each down to its input.
  return at::GradMode::is_enabled() && !x.requires_grad() ? x.detach().requires_grad_() : x;
}

template <class Compute>
at::Tensor Transformer::run_unit(std::size_t index, Compute compute) const {
  if (hooks_ == nullptr) return compute();
  hooks_->before_forward(index);
  const at::Tensor output = compute();
  hooks_->after_forward(index, output);
  // The gradient of its output is complete: so is all that came after it.
  if (output.requires_grad()) {
    output.register_hook([hooks = hooks_, index](const at::Tensor& /*gradient*/) {
      hooks->after_backward(index + 1);
      hooks->before_backward(index);
    });
  }
  return output;
}

at::Tensor Transformer::hidden_states(const at::Tensor& input_ids) const {
  at::Tensor x = run_unit(0, [&] { return embedding(input_ids); });
  for (std::size_t i = 1; i + 1 < units_.size(); ++i) {
    x = run_unit(i, [&] { return block(i, x); });
  }
  return x;
}

// `compute` makes the head's output from the normed hidden states.
template <class Compute>
at::Tensor Transformer::run_head(const at::Tensor& x, Compute compute) const {
  const std::size_t head = units_.size() - 1;
  const bool tied = config_.tie_word_embeddings;
  if (hooks_ != nullptr) {
    hooks_->before_forward(head);
    if (tied) hooks_->before_forward(0);
    if (at::GradMode::is_enabled()) hooks_->before_gradients(tied ? 0 : head);
  }
  const at::Tensor normed =
      ops::rms_norm(x, units_[head].parameters[0].value, config_.rms_norm_eps, options_.kernels).normed;
  if (hooks_ != nullptr && normed.requires_grad()) {
    normed.register_hook([hooks = hooks_, head](const at::Tensor& /*gradient*/) { hooks->before_backward(head); });
  }
  const at::Tensor output = compute(normed);
  if (hooks_ != nullptr) {
    hooks_->after_forward(head, output);
    if (tied) hooks_->after_forward(0, output);
  }
  return output;
}

const at::Tensor& Transformer::head_weight() const {
  return config_.tie_word_embeddings ? units_.front().parameters[0].value : units_.back().parameters[1].value;
}

at::Tensor Transformer::loss(const at::Tensor& input_ids, const at::Tensor& targets, const at::Tensor& weights,
                             double grad_scale) const {
  return run_head(hidden_states(input_ids), [&](const at::Tensor& x) {
    return ops::linear_cross_entropy(x.view({-1, config_.hidden_size}), head_weight(), targets, weights,
                                     options_.loss_chunk_tokens, grad_scale, options_.kernels);
  });
}

void Transformer::backward(const at::Tensor& loss) const {
  try {
    loss.backward();
  } catch (...) {
    drop_pending_gradients(loss);
    throw;
  }
  if (hooks_ != nullptr) hooks_->after_backward(0);
}

at::Tensor Transformer::logits(const at::Tensor& input_ids) const {
  const at::NoGradGuard no_grad;
  return run_head(hidden_states(input_ids),
                  [&](const at::Tensor& x) { return ops::linear(x.to(at::kFloat), head_weight().to(at::kFloat)); });
}

void initialize_parameter(Parameter& parameter, const ModelConfig& config, at::Generator generator) {
  const at::NoGradGuard no_grad;
  if (parameter.shape.size() == 1) {
    parameter.value.fill_(1);
  } else {
    parameter.value.normal_(0, config.initializer_range, std::move(generator));
  }
}

}  // namespace assay
