#include "model/transformer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "harness/core/error.h"

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

}  // namespace

std::int64_t Parameter::numel() const {
  std::int64_t product = 1;
  for (const auto size : shape) product *= size;
  return product;
}

Transformer::Transformer(const ModelConfig& config, const TransformerOptions& options, Device& device)
    : config_(config), options_(options), units_(declare_units(config)) {
  if (options.sequence_length > config.max_position_embeddings) {
    throw Error(ErrorKind::recipe, "data.sequence_length " + std::to_string(options.sequence_length) +
                                       " is longer than the model's max_position_embeddings " +
                                       std::to_string(config.max_position_embeddings));
  }
  const auto frequencies = rotary_frequencies(config.rope, config.head_dim);
  std::vector<float> cos;
  std::vector<float> sin;
  for (std::int64_t position = 0; position < options.sequence_length; ++position) {
    for (const float frequency : frequencies) {
      const float angle = static_cast<float>(position) * frequency;
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
  }
  const std::vector<std::int64_t> shape{options.sequence_length, 1, static_cast<std::int64_t>(frequencies.size())};
  cos_ = device.upload(cos, shape);
  sin_ = device.upload(sin, shape);
}

at::Tensor Transformer::block(const Unit& unit, const at::Tensor& x) const {
  const auto& weights = unit.parameters;
  const auto heads = [&](const at::Tensor& y, std::int64_t count) {
    return y.view({y.size(0), y.size(1), count, config_.head_dim});
  };
  const auto first = ops::rms_norm(x, weights[input_norm].value, config_.rms_norm_eps);
  const auto projected =
      ops::linears(first.normed, {weights[q_proj].value, weights[k_proj].value, weights[v_proj].value});
  const at::Tensor cos = cos_.narrow(0, 0, x.size(1));
  const at::Tensor sin = sin_.narrow(0, 0, x.size(1));
  const at::Tensor query = ops::rotary(heads(projected[0], config_.num_attention_heads), cos, sin);
  const at::Tensor key = ops::rotary(heads(projected[1], config_.num_key_value_heads), cos, sin);
  const at::Tensor value = heads(projected[2], config_.num_key_value_heads);
  const at::Tensor attended = ops::causal_attention(options_.attention, query, key, value);
  const at::Tensor middle = first.residual + ops::linear(attended, weights[o_proj].value);

  const auto second = ops::rms_norm(middle, weights[post_norm].value, config_.rms_norm_eps);
  const auto wide = ops::linears(second.normed, {weights[gate_proj].value, weights[up_proj].value});
  return second.residual + ops::linear(ops::swiglu(wide[0], wide[1]), weights[down_proj].value);
}

at::Tensor Transformer::hidden_states(const at::Tensor& input_ids) const {
  at::Tensor x = ops::embedding(units_.front().parameters[0].value, input_ids);
  for (std::size_t i = 1; i + 1 < units_.size(); ++i) x = block(units_[i], x);
  return ops::rms_norm(x, units_.back().parameters[0].value, config_.rms_norm_eps).normed;
}

const at::Tensor& Transformer::head_weight() const {
  return config_.tie_word_embeddings ? units_.front().parameters[0].value : units_.back().parameters[1].value;
}

at::Tensor Transformer::loss(const at::Tensor& input_ids, const at::Tensor& targets, const at::Tensor& weights) const {
  const at::Tensor x = hidden_states(input_ids);
  return ops::linear_cross_entropy(x.view({-1, config_.hidden_size}), head_weight(), targets, weights,
                                   options_.loss_chunk_tokens);
}

at::Tensor Transformer::logits(const at::Tensor& input_ids) const {
  return ops::linear(hidden_states(input_ids), head_weight());
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
