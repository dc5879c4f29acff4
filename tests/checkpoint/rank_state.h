#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/checkpointer.h"

namespace assay {

/// A pretended training state of one rank: every rank and step has other values, in several dtypes.
struct RankState {
  RankState(int rank, std::int64_t step, std::size_t count = 1000) : weights(count), moments(count / 2), counter(step) {
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] = static_cast<float>(rank * 1000 + step) + 0.001F * static_cast<float>(i);
    for (std::size_t i = 0; i < moments.size(); ++i)
      moments[i] = static_cast<std::uint16_t>(step * 31 + rank * 7 + static_cast<int>(i));
    position = Json{{"sample", step * 8 + rank}, {"loss", 1.0 / static_cast<double>(step + 3)}};
  }

  std::vector<TensorBytes> bytes() const {
    return {{"model.weight", "F32", {static_cast<std::int64_t>(weights.size())}, weights.data(), weights.size() * 4},
            {"optimizer.exp_avg",
             "BF16",
             {static_cast<std::int64_t>(moments.size()), 1},
             moments.data(),
             moments.size() * 2},
            {"optimizer.step", "I64", {}, &counter, 8}};
  }
  std::vector<TensorDestination> destinations() {
    return {{"model.weight", "F32", {static_cast<std::int64_t>(weights.size())}, weights.data(), weights.size() * 4},
            {"optimizer.exp_avg",
             "BF16",
             {static_cast<std::int64_t>(moments.size()), 1},
             moments.data(),
             moments.size() * 2},
            {"optimizer.step", "I64", {}, &counter, 8}};
  }
  bool operator==(const RankState& other) const = default;

  std::vector<float> weights;
  std::vector<std::uint16_t> moments;
  std::int64_t counter = 0;
  Json position;
};

inline RunDescription run_description() { return {Json{{"name", "tiny"}}, "hash", Json{{"assay", "0.1.0"}}}; }

/// Saves the states of all ranks for one step.
inline SaveResult save_step(Checkpointer& checkpointer, RankGroup& group, std::int64_t step, std::size_t count = 1000) {
  const RankState state(group.rank(), step, count);
  return checkpointer.save(step, state.bytes(), state.position, run_description());
}

}  // namespace assay
