#pragma once

#include <string>

#include "harness/acceptance/run_record.h"
#include "harness/acceptance/stage_checks.h"

namespace assay {

/// What the checks of stage train look at.
struct TrainView {
  const RunRecord& run;
  const JobRecord& job;   ///< train-1: interrupted and resumed; started, with at least one rank
  const JobRecord& twin;  ///< twin-1: not interrupted; may never have been started
  int attempt;            ///< of train-1, the last
  StageChecks& checks;
};

inline std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

/// train.load, precision, shape, forward_backward and accumulate_update: what happens within the steps.
void check_steps(const TrainView& view);

}  // namespace assay
