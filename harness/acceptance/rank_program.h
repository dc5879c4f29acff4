#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "harness/core/error.h"
#include "harness/core/json.h"
#include "harness/recipe/recipe.h"

namespace assay {

/// The program `assay-rank` beside this one. Throws Error{usage} if it was not built.
std::filesystem::path find_rank_program();

/// The user's SIGINT, SIGTERM, SIGQUIT or SIGHUP while a rank program ran.
class Interrupted : public Error {
 public:
  explicit Interrupted(int signal);
};

/// What one rank program wrote and how it ended.
struct RankOutput {
  int exit_code = 0;  ///< exit_incomplete also if it could not run, was killed or took too long; then `out` is empty
  std::string out;
  std::string err;
};

/// Runs one job (see harness/train/job.h) in one process without a launcher and waits for its end; a run longer than
/// `timeout_seconds` is killed. The process ends with this one. Main must have called run_rank_shim_if_asked. Throws
/// Error{io} if it cannot be started, Interrupted after a signal, and what find_rank_program throws.
RankOutput run_rank_program(const Json& job, double timeout_seconds = 600);

/// Of a run that did not end with 0: the kind that its exit code stands for, and the last lines it wrote.
Error failure_of(const RankOutput& output);

/// What came out of a dry run of several recipes by one rank program.
struct DryRunOutcome {
  Json rows;                                   ///< one object a recipe, in order; null after a failure
  ErrorKind error_kind = ErrorKind::internal;  ///< of a failure
  std::string message;                         ///< last lines it wrote; empty without a failure
};

/// Runs the recipes through the program itself on meta tensors, in one process. Blocks. Throws as run_rank_program.
DryRunOutcome run_dry_run(const std::vector<Recipe>& recipes);

}  // namespace assay
