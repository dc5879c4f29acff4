#pragma once

#include <cstdint>

#include "harness/recipe/recipe.h"
#include "model/model_config.h"

namespace assay {

/// Bytes of activations of one rank: what lives from forward to backward, and beside it what lives at three places of
/// a micro-step only.
struct ActivationBytes {
  std::int64_t batches = 0;       ///< tokens, targets and weights of all micro-steps of a step
  std::int64_t kept = 0;          ///< of all blocks; of inference: the cache of keys and values
  std::int64_t at_loss = 0;       ///< last hidden states, their norm and gradient, a chunk of logits twice
  std::int64_t in_block = 0;      ///< while a block is differentiated: what is computed again, its gradients
  std::int64_t in_embedding = 0;  ///< while the embedding is differentiated
  std::int64_t in_update = 0;     ///< fp32 copies of 2^20 gradients for their norm, if they are not fp32
};

/// Legend: E hidden size, H query heads, K key/value heads, D head size, F intermediate size, V vocabulary, L sequence
/// length, e bytes of the compute dtype.
///
/// A block keeps for backward, a token, in elements of the compute dtype: 4 E (its input, both normed inputs, the
/// middle sum), 2 H D (query, attention output), 2 K D (key, value), 3 F (gate, up, their product; 2 F of gpt2), and in
/// fp32 H + 2 (softmax sums, norm roots): the saved tensors of model/functions.h; with flash attention no term in L^2
/// (Dao et al. 2022, arXiv 2205.14135), with attention `math` H L more, the softmax (Korthikanti et al. 2022, arXiv
/// 2205.05198, section 4.1, without dropout). qwen3 norms queries and keys: H D + K D more. With a frozen base the
/// input of a matrix is kept only where an adapter reads it, and of each adapter r.
///
/// Checkpointed in full a block keeps E; selectively the outputs of its products, 2 E + 2 H D + 2 K D + 2 F; then one
/// block at a time holds the rest as well.
///
/// Differentiating a block takes beside that 3 F + E elements (gradients of gate, up and of their product, the
/// output's); where products of 16 bits go through fp32 (CPU), fp32 copies of the last product's operands and results:
/// 6 E + 8 F bytes a token and the weight, 4 E F. A matrix in NF4 is dequantised for its product: e bytes an element of
/// the largest one (Dettmers et al. 2023, arXiv 2305.14314).
///
/// The loss holds, a token, 3 E e + 4, and of a chunk of tokens fp32 logits twice, 8 V a token; fp32 copies of the
/// head's weight where products go through fp32, and its fp32 gradient where gradients are bf16.
ActivationBytes activation_bytes(const Recipe& recipe, const ModelConfig& config, std::int64_t compute_bytes,
                                 std::int64_t gradient_bytes);

}  // namespace assay
