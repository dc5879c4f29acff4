#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "harness/acceptance/run_record.h"
#include "harness/launch/launcher.h"
#include "harness/recipe/recipe.h"

namespace assay {

/// How jobs of this command show themselves.
struct JobDisplay {
  bool echo = true;        ///< the ranks' output on this terminal
  int hidden_streams = 0;  ///< as in LaunchSpec: 1 keeps stdout free for --json
};

/// One job of a run: jobs/<name>/.
struct JobRequest {
  std::string name;               ///< "train-1"
  std::string kind;               ///< see harness/train/job.h
  Recipe recipe;                  ///< of the job
  Recipe target;                  ///< of the run; what differs is written into job.json
  std::string reduced_model;      ///< see reduced_model_of
  Json options = Json::object();  ///< of the kind of job
};

/// Writes the job's job.json: what its ranks are told, and how that differs from the run's recipe. Creates the folder.
void write_job_file(const std::filesystem::path& run_folder, const JobRequest& request);

/// Writes the job's job.json anew, and says so, if it is there and damaged: it says nothing that the request does not.
void mend_job_file(const std::filesystem::path& run_folder, const JobRequest& request);

/// Starts one attempt of a job (the first, or one more that goes on in the same folder) and waits for it. `kill_one`:
/// once a first checkpoint is complete and its last rank has gone on to a later step, that rank is killed with SIGKILL,
/// on purpose, and the launcher's events say so. Throws what launch() throws.
LaunchResult run_attempt(const std::filesystem::path& run_folder, const JobRequest& request, const JobDisplay& display,
                         bool kill_one = false);

/// As often as a user's interruption left it unfinished: does nothing if the job has ended well before.
LaunchResult run_job(const std::filesystem::path& run_folder, const JobRequest& request, const JobDisplay& display);

}  // namespace assay
