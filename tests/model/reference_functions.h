#pragma once

#include <cmath>

#include "tests/model/gradient_check.h"

// The network's functions as composites of plain operators.

namespace assay {

inline Tensors reference_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return {x * at::rsqrt(x.square().mean(-1, true) + eps) * weight, x};
}

// x, cos, sin. transformers' apply_rotary_pos_emb: x cos + rotate_half(x) sin.
inline Tensors reference_rotary(const Tensors& t) {
  const std::int64_t half = t[0].size(-1) / 2;
  const at::Tensor rotated = at::cat({-t[0].narrow(-1, half, half), t[0].narrow(-1, 0, half)}, -1);
  return {t[0] * at::cat({t[1], t[1]}, -1) + rotated * at::cat({t[2], t[2]}, -1)};
}

// gate, up.
inline Tensors reference_swiglu(const Tensors& t) { return {t[0] / (1 + at::exp(-t[0])) * t[1]}; }

// Scores of all pairs, those of later keys taken out, query head h on key head h / (H / K).
inline at::Tensor reference_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const std::int64_t group = query.size(2) / key.size(2);
  const auto heads_outside = [&](const at::Tensor& t) { return t.transpose(1, 2); };
  const at::Tensor k = heads_outside(at::repeat_interleave(key, group, 2));
  const at::Tensor v = heads_outside(at::repeat_interleave(value, group, 2));
  const at::Tensor scores =
      at::matmul(heads_outside(query), k.transpose(2, 3)) / std::sqrt(static_cast<double>(query.size(3)));
  const at::Tensor later = at::ones({query.size(1), query.size(1)}, at::kBool).triu(1);
  const at::Tensor weights = at::softmax(scores.masked_fill(later, -INFINITY), -1);
  return at::matmul(weights, v).transpose(1, 2).reshape({query.size(0), query.size(1), -1});
}

// x, weight, targets, token weights; with all logits.
inline Tensors reference_cross_entropy(const Tensors& t) {
  const at::Tensor logits = at::matmul(t[0], t[1].t());
  const at::Tensor scores = logits - at::logsumexp(logits, {1}, true);
  return {-(at::gather(scores, 1, t[2].unsqueeze(1)).squeeze(1) * t[3]).sum().reshape({1})};
}

}  // namespace assay
