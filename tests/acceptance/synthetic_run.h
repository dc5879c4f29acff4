#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/acceptance/evaluate.h"
#include "harness/acceptance/run_record.h"
#include "harness/launch/rank_failure.h"

namespace assay {

/// Events of a run as its processes would write them, with figures that are easy to compute by hand: two ranks, ten
/// steps, loss 5 - step/4, one second a step, 128 tokens a step (2 ranks x 2 rows x 2 micro-steps x length 16), saved
/// at steps 4, 8 and 10.
inline constexpr int kRanks = 2;
inline constexpr std::int64_t kSteps = 10;

inline Recipe synthetic_recipe() {
  Recipe recipe;
  recipe.name = "synthetic";
  recipe.model.path = "nowhere";
  recipe.data.sequence_length = 16;
  recipe.train.max_steps = kSteps;
  recipe.train.global_batch_size = 8;
  recipe.parallel.nproc_per_node = kRanks;
  recipe.parallel.strategy = StrategyName::ddp;
  recipe.checkpoint.interval = 4;
  recipe.accept.limits = "recipes/limits/cpu.yaml";
  return recipe;
}

inline Json event(std::string_view kind, int rank, std::int64_t step, int attempt,
                  const Json& fields = Json::object()) {
  Json json{{"kind", kind},
            {"time", "2026-01-01T00:00:0" + std::to_string(attempt) + ".000000Z"},
            {"rank", rank},
            {"step", step},
            {"attempt", attempt}};
  json.update(fields);
  return json;
}

inline Json memory_facts() {
  return {{"peak_allocated_bytes", 1000},
          {"peak_reserved_bytes", 1200},
          {"fits", nullptr},
          {"usable_bytes", nullptr},
          {"num_alloc_retries", 0},
          {"by_category", {{"parameters", 400}, {"optimizer", 500}, {"activations", 100}}},
          {"by_phase",
           {{"load", 900},
            {"forward", 950},
            {"backward", 1000},
            {"accumulate", 990},
            {"update", 920},
            {"save", 0},
            {"restore", 0}}}};
}

/// Everything one rank writes in an attempt that does the steps first..last; `ends` false: it is killed after the last.
inline void add_attempt(std::vector<Json>& events, int rank, int attempt, std::int64_t first, std::int64_t last,
                        std::int64_t interval = 4, bool ends = true) {
  auto add = [&](std::string_view kind, std::int64_t step, const Json& fields) {
    events.push_back(event(kind, rank, step, attempt, fields));
  };
  const auto hash = [](std::int64_t step) { return "state" + std::to_string(step); };
  add("run", first - 1,
      {{"parameters", 100},
       {"num_threads", 1},
       {"model_flops_per_token", 6000},
       {"flops_convention", "6 per weight"},
       {"param_dtype", "fp32"},
       {"state_hash", hash(first - 1)},
       {"parameters_hash", "parameters of " + hash(first - 1)},
       {"resumed_from", first > 1 ? Json("checkpoints/step") : Json()},
       {"versions", {{"libtorch", "2.11.0"}}}});
  add("phase", first - 1, {{"phase", "load"}, {"seconds", 0.5}, {"peak_allocated_bytes", 900}});
  if (first > 1) add("checkpoint", first - 1, {{"restored", true}, {"path", "x"}, {"seconds", 0.25}});
  for (auto step = first; step <= last; ++step) {
    const bool saves = ends && (step % interval == 0 || step == kSteps);
    add("step", step,
        {{"loss", 5 - static_cast<double>(step) / 4},
         {"grad_norm", 1.0},
         {"learning_rate", 1e-3},
         {"tokens", 128},
         {"loss_tokens", 120},
         {"real_tokens", 124},
         {"skipped", false},
         {"peak_reserved_bytes", 1200},
         {"step_seconds", 1.0},
         {"forward_seconds", 0.3},
         {"backward_seconds", 0.5},
         {"save_seconds", saves ? 2.0 : 0.0}});
    if (saves)
      add("checkpoint", step,
          {{"path", "x"}, {"saved_step", step}, {"seconds", 2.0}, {"bytes", 800}, {"reason", "interval"}});
  }
  if (!ends) return;
  for (const char* phase : {"forward", "backward", "accumulate", "update", "save"}) {
    add("phase", last, {{"phase", phase}, {"seconds", 0.1}, {"peak_allocated_bytes", 950}});
  }
  auto memory = memory_facts();
  memory["by_phase"]["save"] = 900;  // which a dry run does not pass
  add("memory", last,
      {{"measured_allocated_bytes", memory["peak_allocated_bytes"]},
       {"measured_reserved_bytes", memory["peak_reserved_bytes"]},
       {"reserved_minus_allocated_bytes", 200},
       {"largest_free_block_bytes", 150},
       {"by_category", memory["by_category"]},
       {"by_phase", memory["by_phase"]}});
  // 128 tokens of two ranks x 6000 FLOPs = 384000 a rank and step; at 0.8 CPU seconds a step that is half of 960000
  // FLOP/s.
  const auto num_steps = static_cast<double>(last - first + 1);
  add("end", last,
      {{"exit_code", 0},
       {"stopped_by", nullptr},
       {"state_hash", hash(last)},
       {"parameters_hash", "parameters of " + hash(last)},
       {"gemm_gflops", 960000e-9},
       {"compute_seconds", num_steps},
       {"compute_cpu_seconds", 0.8 * num_steps}});
}

inline void add_launcher_end(JobRecord& job, int attempt, int exit_code = 0) {
  job.launcher.push_back(
      event("end", -1, 0, attempt,
            {{"exit_code", exit_code}, {"interrupted_by", nullptr}, {"root_cause", nullptr}, {"seconds", 12.5}}));
}

/// What the launcher writes of a rank that was killed by a signal, or (signal 0) ended with exit code 1 and error
/// `kind`.
inline void add_failure(JobRecord& job, int attempt, int rank, int signal, const std::string& phase, std::int64_t step,
                        const std::string& kind = "", const std::string& message = "") {
  RankFailure failure;
  failure.rank = rank;
  failure.host = "node7";
  failure.pid = 42;
  if (signal != 0)
    failure.signal = signal;
  else
    failure.exit_code = 1;
  failure.reason = signal != 0 ? "killed" : "exited";
  failure.phase = phase;
  failure.step = step;
  failure.error_kind = kind;
  failure.message = message;
  job.launcher.push_back(event("error", -1, step, attempt, {{"failed_rank", rank}}));
  job.launcher.push_back(event("end", -1, 0, attempt,
                               {{"exit_code", signal ? 128 + signal : 1},
                                {"interrupted_by", nullptr},
                                {"root_cause", to_json(failure)},
                                {"seconds", 3.0}}));
}

inline JobRecord empty_job(const std::string& name, int world_size) {
  JobRecord job;
  job.name = name;
  job.job = {{"kind", "train"}, {"world_size", world_size}, {"changes", Json::array()}};
  job.ranks.resize(static_cast<std::size_t>(world_size));
  return job;
}

/// train-1: rank 1 is killed on purpose in step 6 of attempt 1; attempt 2 resumes after step 4.
inline JobRecord interrupted_job() {
  auto job = empty_job("train-1", kRanks);
  job.launcher.push_back(event("check", -1, 6, 1, {{"name", "planned_kill"}, {"victim", 1}, {"signal", 9}}));
  add_failure(job, 1, 1, 9, "backward", 6);
  for (int rank = 0; rank < kRanks; ++rank) {
    auto& events = job.ranks[static_cast<std::size_t>(rank)];
    add_attempt(events, rank, 1, 1, 6, 4, /*ends=*/false);
    add_attempt(events, rank, 2, 5, kSteps);
  }
  add_launcher_end(job, 2);
  return job;
}

inline JobRecord undisturbed(const std::string& name, int world_size, std::int64_t steps) {
  auto job = empty_job(name, world_size);
  for (int rank = 0; rank < world_size; ++rank)
    add_attempt(job.ranks[static_cast<std::size_t>(rank)], rank, 1, 1, steps);
  add_launcher_end(job, 1);
  return job;
}

inline JobRecord collective_job() {
  auto job = empty_job("collective-1", kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    auto& events = job.ranks[static_cast<std::size_t>(rank)];
    const Json place{{"device", "cpu"}, {"gpu", nullptr}, {"memory_bytes", 1 << 30}};
    Json sum{{"operation", "all_reduce"}, {"elements", 1024 * 1024}, {"num_wrong", 0}, {"max_abs_error", 0.0}};
    sum.update(place);
    events.push_back(event("collective", rank, 0, 1, sum));
    Json barrier{{"operation", "barrier"}, {"num_wrong", 0}};
    barrier.update(place);
    events.push_back(event("collective", rank, 0, 1, barrier));
  }
  add_launcher_end(job, 1);
  return job;
}

/// A run in which everything is as it should be.
inline RunRecord passing_run() {
  RunRecord run;
  run.recipe = synthetic_recipe();
  run.machine = {{"host", "node7"},
                 {"kernel", "Linux 6"},
                 {"cpu", {{"model", "Model X"}, {"num_cores_available", 2}}},
                 {"memory", {{"total_bytes", 1 << 30}, {"available_bytes", 1 << 29}}},
                 {"disk", {{"path", "/"}, {"free_bytes", 1 << 30}}},
                 {"gpus", {{"found", Json::array()}, {"reason", "no driver"}}},
                 {"versions", {{"assay", "0"}, {"libtorch", nullptr}, {"libtorch_reason", "see the ranks"}}}};
  auto dry_run = memory_facts();
  dry_run["parameters"] = 100;
  dry_run["trainable_parameters"] = 100;
  dry_run["world_size"] = kRanks;
  dry_run["seconds"] = 0.01;
  run.estimate = {
      {"formula", {{"weights", 400}, {"total", 1100}}}, {"dry_run", dry_run}, {"error", nullptr}, {"seconds", 0.1}};
  run.limits = load_limits("recipes/limits/cpu.yaml");
  run.jobs["collective-1"] = collective_job();
  run.jobs["single-1"] = undisturbed("single-1", 1, 2);
  run.jobs["train-1"] = interrupted_job();
  run.jobs["twin-1"] = undisturbed("twin-1", kRanks, kSteps);
  return run;
}

/// All events of a kind in a job, for a test that changes or removes them.
template <typename Change>
void for_events(JobRecord& job, std::string_view kind, Change change) {
  for (auto& events : job.ranks) {
    for (auto& event : events) {
      if (event["kind"] == kind) change(event);
    }
  }
}

inline void drop_events(JobRecord& job, int rank, std::string_view kind) {
  std::erase_if(job.ranks[static_cast<std::size_t>(rank)], [&](const Json& event) { return event["kind"] == kind; });
}

/// The result with this name, or nothing.
inline std::optional<Result> result_of(const std::vector<Result>& results, const std::string& check) {
  for (const auto& result : results) {
    if (result.check == check) return result;
  }
  return std::nullopt;
}

/// The checks that did not pass, for a message.
inline std::string summary(const std::vector<Result>& results) {
  std::string text;
  for (const auto& result : results) {
    if (result.status == Status::fail || result.status == Status::incomplete)
      text += result.check + ": " + result.reason + "\n";
  }
  return text;
}

}  // namespace assay
