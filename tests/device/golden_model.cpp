#include "tests/device/golden_model.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "tests/device/golden_autograd.h"

namespace assay::golden {
namespace {

using at::Tensor;

// Places in Block::linears.
enum LlamaLinear : std::size_t { kQ, kK, kV, kO, kGate, kUp, kDown };
enum Gpt2Linear : std::size_t { kQkv, kGpt2O, kFc, kProj };

Tensor empty(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::empty(shape, at::device(at::kMeta).dtype(dtype));
}

Tensor parameter(at::IntArrayRef shape, at::ScalarType dtype) { return empty(shape, dtype).requires_grad_(); }

// Autocast casts the arguments of a call from the last to the first.
Tensor cast_linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {}) {
  const Tensor cast_bias = autocast(bias);
  const Tensor cast_weight = autocast(weight);
  return at::linear(autocast(x), cast_weight, cast_bias);
}

Tensor rotate_half(const Tensor& x) {
  const auto halves = x.chunk(2, -1);
  return at::cat({-halves[1], halves[0]}, -1);
}

}  // namespace

at::ScalarType Program::weight_dtype() const {
  return policy == "fp32" || policy == "fp32_amp" ? at::kFloat : at::kBFloat16;
}
at::ScalarType Program::compute_dtype() const { return policy == "fp32" ? at::kFloat : at::kBFloat16; }

Linear Model::make_linear(const std::string& name, std::int64_t inputs, std::int64_t outputs, bool has_bias) const {
  constexpr std::int64_t rank = 16;
  Linear result;
  result.weight = parameter({outputs, inputs}, program_.weight_dtype());
  if (has_bias) result.bias = parameter({outputs}, program_.weight_dtype());
  const bool has_adapter = program_.lora == "all" || (program_.lora == "qv" && (name == "q" || name == "v"));
  if (has_adapter && name != "head") {
    result.adapter_a = parameter({rank, inputs}, program_.adapter_dtype);
    result.adapter_b = parameter({outputs, rank}, program_.adapter_dtype);
  }
  return result;
}

Norm Model::make_norm() const {
  Norm norm;
  norm.weight = parameter({program_.hidden_size}, program_.weight_dtype());
  if (!program_.is_llama) norm.bias = parameter({program_.hidden_size}, program_.weight_dtype());
  return norm;
}

Block Model::make_block() const {
  const std::int64_t h = program_.hidden_size;
  const std::int64_t f = program_.intermediate_size;
  Block block;
  block.norm1 = make_norm();
  block.norm2 = make_norm();
  const auto add = [&](const char* name, std::int64_t inputs, std::int64_t outputs) {
    block.linears.push_back(make_linear(name, inputs, outputs, !program_.is_llama));
  };
  if (program_.is_llama) {
    const std::int64_t kv = h / program_.num_attention_heads * program_.num_key_value_heads;
    add("q", h, h);
    add("k", h, kv);
    add("v", h, kv);
    add("o", h, h);
    add("gate", h, f);
    add("up", h, f);
    add("down", f, h);
  } else {
    add("qkv", h, 3 * h);
    add("o", h, h);
    add("fc", h, f);
    add("proj", f, h);
  }
  return block;
}

Model::Model(const Program& program) : program_(program) {
  constexpr std::int64_t most_positions = 1024;
  const std::int64_t h = program_.hidden_size;
  embedding_ = parameter({program_.vocab_size, h}, program_.weight_dtype());
  if (!program_.is_llama) {
    positions_ = parameter({std::max(program_.sequence_length, most_positions), h}, program_.weight_dtype());
  }
  for (std::int64_t i = 0; i < program_.num_hidden_layers; ++i) blocks_.push_back(make_block());
  norm_ = make_norm();
  if (!program_.tie_word_embeddings) head_ = make_linear("head", h, program_.vocab_size, false);
  if (program_.is_llama) {
    const std::int64_t head_dim = h / program_.num_attention_heads;
    cos_ = empty({program_.sequence_length, head_dim}, program_.compute_dtype());
    sin_ = empty({program_.sequence_length, head_dim}, program_.compute_dtype());
  }
  if (program_.lora == "none") return;
  const auto freeze = [](const Tensor& tensor) {
    if (tensor.defined()) tensor.requires_grad_(false);
  };
  freeze(embedding_);
  for (const auto& block : blocks_) {
    freeze(block.norm1.weight);
    freeze(block.norm2.weight);
    for (const auto& one : block.linears) freeze(one.weight);
  }
  freeze(norm_.weight);
  if (head_) freeze(head_->weight);
}

std::vector<Tensor> Model::trainable_parameters() const {
  std::vector<Tensor> all;
  const auto add = [&](std::initializer_list<Tensor> tensors) {
    for (const auto& tensor : tensors) {
      if (tensor.defined() && tensor.requires_grad()) all.push_back(tensor);
    }
  };
  add({embedding_, positions_});
  for (const auto& block : blocks_) {
    add({block.norm1.weight, block.norm1.bias, block.norm2.weight, block.norm2.bias});
    for (const auto& one : block.linears) add({one.weight, one.bias, one.adapter_a, one.adapter_b});
  }
  add({norm_.weight, norm_.bias});
  if (head_) add({head_->weight});
  return all;
}

Tensor Model::apply(const Linear& layer, const Tensor& x) const {
  Tensor y = cast_linear(x, layer.weight, layer.bias);
  if (!layer.adapter_a.defined()) return y;
  Tensor inner = cast_linear(x, layer.adapter_a.to(x.scalar_type()));
  Tensor outer = cast_linear(inner, layer.adapter_b.to(x.scalar_type()));
  inner.reset();
  const Tensor scaled = outer * 2.0;
  outer.reset();
  y = y + scaled;
  return y;
}

Tensor Model::apply(const Norm& norm, const Tensor& x) const {
  const std::int64_t shape[] = {x.size(-1)};
  constexpr double eps = 1e-5;
  if (norm.bias.defined()) return std::get<0>(at::native_layer_norm(x, shape, norm.weight, norm.bias, eps));
  if (program_.has_fused_norm) return std::get<0>(at::_fused_rms_norm(x, shape, norm.weight, eps));
  Tensor v = x.to(at::kFloat);
  Tensor root = v.pow(2);
  root = root.mean(-1, /*keepdim=*/true);
  root = root + eps;
  root = at::rsqrt(root);
  v = v * root;
  root.reset();
  return norm.weight * v.to(x.scalar_type());
}

Tensor Model::attention(const Tensor& q, const Tensor& k, const Tensor& v) const {
  constexpr double no_dropout = 0;
  constexpr bool is_causal = true;
  if (q.scalar_type() == at::kFloat) {
    return std::get<0>(
        at::_scaled_dot_product_efficient_attention(q, k, v, {}, /*compute_log_sumexp=*/true, no_dropout, is_causal));
  }
  return std::get<0>(at::_scaled_dot_product_flash_attention(q, k, v, no_dropout, is_causal));
}

Tensor Model::rotated(const Tensor& x) const {
  const Tensor straight = x * cos_;
  Tensor turned = rotate_half(x);
  turned = turned * sin_;
  return straight + turned;
}

Tensor Model::llama_block(const Block& block, Tensor x) const {
  const std::int64_t heads = program_.num_attention_heads;
  const std::int64_t kv_heads = program_.num_key_value_heads;
  const std::int64_t head_dim = program_.hidden_size / heads;
  const std::int64_t batch = x.size(0);
  const std::int64_t length = x.size(1);
  const auto by_head = [&](const Tensor& y, std::int64_t count) {
    return y.view({batch, length, count, head_dim}).transpose(1, 2);
  };
  Tensor y = apply(block.norm1, x);
  Tensor q = by_head(apply(block.linears[kQ], y), heads);
  Tensor k = by_head(apply(block.linears[kK], y), kv_heads);
  Tensor v = by_head(apply(block.linears[kV], y), kv_heads);
  q = rotated(q);
  k = rotated(k);
  if (kv_heads != heads) {
    k = k.repeat_interleave(heads / kv_heads, 1);
    v = v.repeat_interleave(heads / kv_heads, 1);
  }
  const Tensor a = attention(q, k, v);
  x = x + apply(block.linears[kO], a.transpose(1, 2).reshape({batch, length, -1}));
  y = apply(block.norm2, x);
  Tensor activated = at::silu(apply(block.linears[kGate], y));
  activated = activated * apply(block.linears[kUp], y);
  Tensor output = apply(block.linears[kDown], activated);
  activated.reset();
  return x + output;
}

Tensor Model::gpt2_block(const Block& block, Tensor x) const {
  const std::int64_t batch = x.size(0);
  const std::int64_t length = x.size(1);
  const std::int64_t heads = program_.num_attention_heads;
  const auto by_head = [&](const Tensor& y) { return y.view({batch, length, heads, -1}).transpose(1, 2); };
  const auto qkv = apply(block.linears[kQkv], apply(block.norm1, x)).split(program_.hidden_size, 2);
  const Tensor q = by_head(qkv[0]);
  const Tensor k = by_head(qkv[1]);
  const Tensor v = by_head(qkv[2]);
  const Tensor a = attention(q, k, v);
  x = x + apply(block.linears[kGpt2O], a.transpose(1, 2).reshape({batch, length, -1}));
  Tensor activated = apply(block.norm2, x);
  activated = apply(block.linears[kFc], activated);
  activated = at::gelu(activated, "tanh");
  Tensor output = apply(block.linears[kProj], activated);
  activated.reset();
  return x + output;
}

Tensor Model::run_block(const Block& block, const Tensor& x) const {
  const auto body = [this, &block](const Tensor& input) {
    const AutocastScope scope(program_.has_autocast());
    return program_.is_llama ? llama_block(block, input) : gpt2_block(block, input);
  };
  return program_.checkpoints_blocks ? checkpoint(body, x) : body(x);
}

Tensor Model::forward(const Tensor& ids, const Tensor& labels) const {
  Tensor x = at::embedding(embedding_, ids);
  if (positions_.defined()) x = x + positions_.slice(0, 0, ids.size(1));
  if (program_.checkpoints_blocks && !x.requires_grad()) x.requires_grad_(true);
  for (const auto& block : blocks_) x = run_block(block, x);
  x = apply(norm_, x);
  const Tensor logits = head_ ? apply(*head_, x) : cast_linear(x, embedding_);
  return at::cross_entropy_loss(logits.to(at::kFloat).view({-1, program_.vocab_size}), labels.view({-1}));
}

}  // namespace assay::golden
