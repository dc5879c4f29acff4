#pragma once

#include <string>
#include <vector>

#include "harness/acceptance/check.h"
#include "harness/acceptance/run_record.h"

namespace assay {

/// The stages that are built, in the order in which they run.
const std::vector<std::string>& all_stages();

/// Results of one stage from what its jobs wrote. Pure: the same files and limits give the same results. What is not
/// there is incomplete. An unknown stage throws Error{recipe}.
std::vector<Result> evaluate_stage(const std::string& stage, const RunRecord& run);

/// After such results no later job is started: something failed, or could not run.
bool blocks_later_jobs(const std::vector<Result>& results);

/// True if `stage` need not start a job that a blocked run has not done already.
bool can_be_evaluated_when_blocked(const std::string& stage, const RunRecord& run);

/// The one result of a stage that was left out because `blocking` did not pass.
Result not_started(const std::string& stage, const std::string& blocking);

/// A skip for each stage that accept.stages does not name, and one result that makes such a run incomplete: a part of
/// the acceptance accepts nothing. Empty if all stages are named.
std::vector<Result> stages_left_out(const Recipe& recipe);

/// All stages of the recipe in order, with stages left out after one that blocks; then what accept.stages leaves out.
std::vector<Result> evaluate_run(const RunRecord& run);

/// Steps between checkpoints in the jobs of stage train: the recipe's, or half of max_steps if the recipe's leaves no
/// checkpoint before the last step to resume from.
std::int64_t checkpoint_interval_of(const Recipe& recipe);

/// Processes that take part in the jobs of the recipe.
std::int64_t world_size_of(const Recipe& recipe);

}  // namespace assay
