#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/acceptance/limits.h"
#include "harness/core/json.h"
#include "harness/recipe/recipe.h"

namespace assay {

/// Why an attempt of a job did not end well.
struct JobFailure {
  std::string sentence;  ///< names rank, host, exit code or signal, phase, step and message
  std::string error;     ///< kind of error (core/error.h); empty if the process left none
  std::vector<int> ranks;
  std::string phase;         ///< last phase; empty if unknown
  std::string reason;        ///< the launcher's: exited, killed, stopped, stalled; empty if it named none
  bool interrupted = false;  ///< by the user's signal or on purpose, not by a failure
};

/// Of a job folder: what would have made a job fit that ran out of device memory.
inline constexpr const char* kRemediesFile = "remedies.json";

/// What the processes of one job wrote: jobs/<stage>-<n>/.
struct JobRecord {
  std::string name;                      ///< "train-1"
  Json job;                              ///< job.json, or null: the job was never started
  std::vector<std::vector<Json>> ranks;  ///< events of each rank, in order
  std::vector<Json> launcher;            ///< the launcher's events
  Json remedies;  ///< after an out-of-memory: "remedies" (evaluate_remedies); else null. By read_run

  bool started() const { return !job.is_null(); }
  int world_size() const { return static_cast<int>(ranks.size()); }
  /// The last attempt that was started, 0 before the first.
  int last_attempt() const;
  /// Events of one kind, of one attempt (0: of all), in order.
  std::vector<const Json*> events(int rank, std::string_view kind, int attempt = 0) const;
  /// The last of these, or null.
  const Json* last(int rank, std::string_view kind, int attempt = 0) const;
  /// The first event of that kind whose field `key` is `value`, of one attempt (0: all); or null.
  const Json* find(int rank, std::string_view kind, const std::string& key, const Json& value, int attempt = 0) const;
  /// The launcher's event that it is going to kill a rank on purpose in this attempt, or null.
  const Json* planned_kill(int attempt) const;
  /// The launcher's event at the end of this attempt, or null: then the launcher itself died or is still at it.
  const Json* launcher_end(int attempt) const;
  /// What the launcher named as the cause of this attempt's failure, or null.
  const Json* root_cause(int attempt) const;
  /// This attempt came to its end through the planned kill: the launcher named the victim, and no other rank failed by
  /// itself.
  bool ended_by_planned_kill(int attempt) const;
  /// Nothing if the attempt ended with exit code 0. A planned kill is an interruption.
  std::optional<JobFailure> failure(int attempt) const;
  /// The last attempt ended with exit code 0.
  bool done() const { return started() && last_attempt() > 0 && !failure(last_attempt()); }

 private:
  const Json* failure_beside_planned_kill(int attempt) const;
};

/// Everything that evaluation and reports read of one run folder.
struct RunRecord {
  Recipe recipe;
  Json machine;   ///< machine.json, or null
  Json estimate;  ///< jobs/estimate-1/estimate.json, or null
  Limits limits;
  std::map<std::string, JobRecord> jobs;

  /// An empty record, not started, if there is no such job.
  const JobRecord& job(const std::string& name) const;
};

/// job.json of a job folder; null if it is missing. Throws Error{data} that says what to do if it is damaged.
Json read_job_file(const std::filesystem::path& folder);

/// Reads one job folder; a missing one is a job that was never started. Throws Error{data} for a file that is not what
/// it should be.
JobRecord read_job(const std::filesystem::path& folder);

/// The same without the ranks' events, which may be many: enough for last_attempt, planned_kill and done.
JobRecord read_job_progress(const std::filesystem::path& folder);

/// Reads all of a run folder but its recipe, which the caller resolves. No limits.yaml (of a training) means no limits.
RunRecord read_run(const std::filesystem::path& folder, Recipe recipe);

/// object[key], or null if it is not there, is null, or `object` is no object.
const Json* member_of(const Json& object, const std::string& key);

/// object[key] as a number if it is there and one.
std::optional<double> number_in(const Json* object, const std::string& key);

/// object[key] as a text; "" if it is not there or no text.
std::string text_in(const Json* object, const std::string& key);

}  // namespace assay
