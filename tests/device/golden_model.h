#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace assay::golden {

/// A row of tests/data/memory/real_allocator.csv: the program that was run.
struct Program {
  std::string id;
  bool is_llama = true;
  std::int64_t hidden_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t vocab_size = 0;
  bool tie_word_embeddings = false;
  std::int64_t sequence_length = 0;
  std::int64_t micro_batch_size = 0;
  std::int64_t gradient_accumulation = 1;
  std::string policy;  ///< bf16, bf16_master, bf16_master_fp32grad, fp32_amp, fp32
  bool checkpoints_blocks = false;
  std::string lora;  ///< none, qv, all
  at::ScalarType adapter_dtype = at::kFloat;
  bool has_fused_norm = false;
  bool has_fused_adamw = true;

  bool has_autocast() const { return policy == "fp32_amp"; }
  at::ScalarType weight_dtype() const;
  at::ScalarType compute_dtype() const;
};

struct Linear {
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor adapter_a;  ///< undefined: no adapter
  at::Tensor adapter_b;
};

struct Norm {
  at::Tensor weight;
  at::Tensor bias;  ///< undefined: RMS norm
};

struct Block {
  Norm norm1;
  Norm norm2;
  std::vector<Linear> linears;  ///< llama: q, k, v, o, gate, up, down; gpt2: qkv, o, fc, proj
};

/// goldens/models.py: plain PyTorch llama and gpt2, on Meta tensors. Allocates in the order of the Python program and
/// lets each tensor live as long as Python's names and temporaries do.
class Model {
 public:
  explicit Model(const Program& program);

  /// Those with gradients, in the order of Python's named_parameters().
  std::vector<at::Tensor> trainable_parameters() const;

  /// The mean loss of ids and labels [B, S].
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& labels) const;

 private:
  Linear make_linear(const std::string& name, std::int64_t inputs, std::int64_t outputs, bool has_bias) const;
  Norm make_norm() const;
  Block make_block() const;

  at::Tensor apply(const Linear& linear, const at::Tensor& x) const;
  at::Tensor apply(const Norm& norm, const at::Tensor& x) const;
  at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const;
  at::Tensor rotated(const at::Tensor& x) const;
  at::Tensor llama_block(const Block& block, at::Tensor x) const;
  at::Tensor gpt2_block(const Block& block, at::Tensor x) const;
  at::Tensor run_block(const Block& block, const at::Tensor& x) const;

  Program program_;
  at::Tensor embedding_;
  at::Tensor positions_;
  std::vector<Block> blocks_;
  Norm norm_;
  std::optional<Linear> head_;
  at::Tensor cos_;
  at::Tensor sin_;
};

/// goldens/train.py: builds the program and runs optimizer steps. `mark` is called after each forward<i>, backward<i>,
/// optimizer and zero_grad, and as "begin" in front of each step.
void run(const Program& program, int num_steps, const std::function<void(const std::string& phase)>& mark);

}  // namespace assay::golden
