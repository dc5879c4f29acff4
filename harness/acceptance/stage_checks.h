#pragma once

#include <string>
#include <vector>

#include "harness/acceptance/check.h"
#include "harness/acceptance/run_record.h"

namespace assay {

/// Collects the results of one stage.
class StageChecks {
 public:
  StageChecks(std::string stage, std::string evidence) : stage_(std::move(stage)), evidence_(std::move(evidence)) {}

  /// Adds "<stage>.<name>". The reference holds until the next call.
  Result& add(const std::string& name, Status status, const std::string& reason = "");
  /// Something had to be measured and was not.
  Result& missing(const std::string& name, const std::string& reason);
  /// Compares a number with a limit of the file; incomplete if either is not there.
  Result& judge(const std::string& name, std::optional<double> measured, const Limits& limits,
                const std::string& limit_name, const std::string& missing_reason);
  /// "<stage>.<name>": did the last attempt of this job end well? Errors of kind numeric and memory fail, others are
  /// incomplete. Returns true if it did.
  bool job_ended(const std::string& name, const JobRecord& job, const std::string& advice = "");

  std::vector<Result> take() { return std::move(results_); }

 private:
  std::string stage_;
  std::string evidence_;
  std::vector<Result> results_;
};

/// Fail for kinds that reject a machine or plan (numeric, memory), else incomplete.
Status status_of_failure(const JobFailure& failure);

std::vector<Result> evaluate_machine(const RunRecord& run);
std::vector<Result> evaluate_estimate(const RunRecord& run);
std::vector<Result> evaluate_collective(const RunRecord& run);
std::vector<Result> evaluate_single(const RunRecord& run);
std::vector<Result> evaluate_train(const RunRecord& run);
std::vector<Result> evaluate_memory(const RunRecord& run);
std::vector<Result> evaluate_utilization(const RunRecord& run);

}  // namespace assay
