#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "harness/core/json.h"
#include "harness/launch/world.h"
#include "harness/recipe/recipe.h"
#include "sharding/communicator.h"

namespace assay {

/// What a rank process is asked to do.
struct Job {
  std::string kind = "train";  ///< train, collective, dry_run, verify, fit_search, fit_trials
  Recipe recipe;               ///< resolved
  std::filesystem::path folder;
  Json options = Json::object();  ///< of the kind; see run_verify, run_train
  int attempt = 1;
  World world;
  std::shared_ptr<Communicator>
      communicator;  ///< of the world, if the ranks have met already; else they meet in the job
};

/// A train job on this rank: load, resume, steps, evaluation, checkpoints, events. Returns the exit code; throws Error.
/// Options: "allow_change": keys of the recipe that may differ from the checkpoint's.
int run_train(const Job& job);

/// A collective job: the check of row 1.11, a "collective" event for each operation.
int run_collective_check(const Job& job);

/// A verify job: compares a model with values computed elsewhere and prints JSON. Options: "model", "reference"
/// (paths), "config" (text of overrides), "atol", "rtol", "loss_atol" (numbers or null).
int run_verify(const Job& job);

/// Dry runs of many recipes; prints a JSON array.
int run_dry_run_job(const std::vector<Recipe>& recipes);

/// A fit_search job: the largest value of a recipe key with which the training fits recipe.device_memory, by dry runs
/// under that capacity from `start` on. Prints {"last_good", "first_bad", "refused" (why rules refuse first_bad, or
/// null), "smallest" (a value that fits), "curve": [{"value", "predicted_allocated_bytes", "predicted_reserved_bytes",
/// "fits"}]}; what does not fit is predicted without a capacity. Options: see FitQuestion.
int run_fit_search(const Job& job);

/// A fit_trials job, collective: the same by training with synthetic data, all trials in these processes. After each
/// the memory must be back at its base line, and after one that was out of memory, on whichever rank, a step with
/// "smallest" must succeed; else an Error. Writes check events "fit_trial", "normal_step" and, at the end, "threshold".
/// Options: those of fit_search, "smallest", and "capacity_bytes": a list by rank, in place of the recipe's
/// device_memory.
int run_fit_trials(const Job& job);

}  // namespace assay
