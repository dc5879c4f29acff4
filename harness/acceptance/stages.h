#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "harness/acceptance/check.h"
#include "harness/acceptance/jobs.h"

namespace assay {

/// What a whole acceptance came to.
struct AcceptanceOutcome {
  std::vector<Result> results;
  bool interrupted = false;  ///< by the user: the folder is left unfinished, and the same call goes on with it
};

/// Runs the stages of the recipe in a run folder that was begun: starts the jobs of a stage, evaluates it from the
/// files, writes results.jsonl. Stages that results.jsonl has already are not run again, and jobs that ended well are
/// not started again. After a stage that blocks no more jobs are started. `interrupted` is asked between jobs. Throws
/// the error of a job that failed by the user's mistake (kinds usage, recipe, data): once mended, the same call goes
/// on.
AcceptanceOutcome run_stages(const std::filesystem::path& folder, const Recipe& recipe, const JobDisplay& display,
                             const std::function<bool()>& interrupted);

/// "pass        train.resume  0 (within 0 steps that differ)  ...": one line for the terminal.
std::string line_of(const Result& result);

}  // namespace assay
