#pragma once

#include <cstdint>
#include <string>

#include "harness/train/job.h"
#include "harness/train/threshold_search.h"

namespace assay {

/// Up to which value of a recipe key does the training fit its device? What the jobs fit_search and fit_trials are
/// given in their options: "key", "step", "low", "high", "start", "num_steps".
struct FitQuestion {
  Recipe recipe;  ///< of every trial, but for the key
  std::string key;
  ValueGrid grid;
  std::int64_t start = 1;      ///< the value to begin with
  std::int64_t num_steps = 1;  ///< optimizer steps of a trial

  explicit FitQuestion(const Job& job);

  /// The recipe with KEY=VALUE, under the rules of the command line. Throws Error{recipe}.
  Recipe recipe_at(std::int64_t value) const;
};

}  // namespace assay
