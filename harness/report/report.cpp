#include "harness/report/report.h"

#include <algorithm>
#include <set>

#include "harness/acceptance/estimate.h"
#include "harness/acceptance/measurements.h"
#include "harness/acceptance/remedies.h"
#include "harness/core/event.h"
#include "harness/core/files.h"
#include "harness/recipe/enum_names.h"
#include "harness/recipe/recipe_json.h"

namespace assay {
namespace {

constexpr const char* kJsonFile = "report.json";
constexpr const char* kMarkdownFile = "report.md";
constexpr const char* kSnapshotFile = "memory_snapshot.pickle";
constexpr const char* kTraceFile = "trace.json";

constexpr const char* kNoDeviceOnCpu = "a CPU process has no device memory of its own";
constexpr const char* kNotMeasured = "not measured: see the checks";

void set_null(Json& object, const std::string& key, const std::string& reason) {
  object[key] = nullptr;
  object[key + "_reason"] = reason;
}

void set_or_null(Json& object, const std::string& key, std::optional<double> value, const std::string& reason) {
  if (value)
    set_number(object, key, *value);
  else
    set_null(object, key, reason);
}

/// The same for whole numbers, such as bytes.
void set_count(Json& object, const std::string& key, std::optional<double> value, const std::string& reason) {
  if (value)
    object[key] = static_cast<std::int64_t>(*value);
  else
    set_null(object, key, reason);
}

/// Each rank that ran out of device memory: the device as it was, and what would have fitted.
Json out_of_memory_json(const RunRecord& run) {
  Json rows = Json::array();
  for (const auto& [name, job] : run.jobs) {
    for (int rank = 0; rank < job.world_size(); ++rank) {
      for (const auto* error : job.events(rank, "error")) {
        const Json* memory = member_of(*error, "memory");
        if (memory == nullptr || !memory->is_object()) continue;
        Json row = *memory;
        row.update({{"job", name}, {"rank", rank}, {"step", error->value("step", Json())}});
        const auto remedy = job.remedies.is_object() ? nearest_remedy(job.remedies) : "";
        row["nearest_remedy"] = remedy.empty() ? Json() : Json(remedy);
        rows.push_back(row);
      }
    }
  }
  return rows;
}

Json memory_of(const RunRecord& run) {
  const auto& job = undisturbed_job(run);
  const bool on_cpu = run.recipe.device != DeviceChoice::cuda;
  const Json* dry_run = member_of(run.estimate, "dry_run");
  Json rows = Json::array();
  for (int rank = 0; rank < job.world_size(); ++rank) {
    const Json* memory = job.last(rank, "memory", job.last_attempt());
    Json row{{"rank", rank}};
    set_count(row, "formula_bytes", number_in(member_of(run.estimate, "formula"), "total"), kNotMeasured);
    set_count(row, "dry_run_allocated_bytes", number_in(dry_run, "peak_allocated_bytes"), kNotMeasured);
    set_count(row, "dry_run_reserved_bytes", number_in(dry_run, "peak_reserved_bytes"), kNotMeasured);
    set_count(row, "measured_allocated_bytes", number_in(memory, "measured_allocated_bytes"), kNotMeasured);
    set_count(row, "measured_reserved_bytes", number_in(memory, "measured_reserved_bytes"), kNotMeasured);
    set_count(row, "device_used_bytes", number_in(memory, "device_used_bytes"), on_cpu ? kNoDeviceOnCpu : kNotMeasured);
    for (const char* key : {"by_category", "by_phase"}) {
      const Json* measured = memory != nullptr ? member_of(*memory, key) : nullptr;
      const Json* predicted = dry_run != nullptr ? member_of(*dry_run, key) : nullptr;
      for (const auto& [name, value] :
           {std::pair(std::string(key), measured), {"dry_run_" + std::string(key), predicted}}) {
        if (value != nullptr)
          row[name] = *value;
        else
          set_null(row, name, kNotMeasured);
      }
    }
    rows.push_back(row);
  }
  return rows;
}

Json throughput_json(const RunRecord& run) {
  const auto& job = undisturbed_job(run);
  const auto figures = throughput_of(job, job.last_attempt());
  const auto reason = figures.reason.empty() ? "no step tells its tokens" : figures.reason;
  const Json* start = job.world_size() > 0 ? job.last(0, "run", job.last_attempt()) : nullptr;
  const Json* step = job.world_size() > 0 ? job.last(0, "step", job.last_attempt()) : nullptr;
  Json json;
  set_or_null(json, "tokens_per_second", figures.tokens_per_second, reason);
  const auto ranks = static_cast<double>(std::max(1, job.world_size()));
  const auto total = figures.tokens_per_second;
  set_or_null(json, "tokens_per_second_per_gpu", total ? std::optional(*total / ranks) : std::nullopt, reason);
  set_count(json, "model_flops_per_token", number_in(start, "model_flops_per_token"), kNotMeasured);
  const auto convention = text_in(start, "flops_convention");
  if (convention.empty())
    set_null(json, "flops_convention", kNotMeasured);
  else
    json["flops_convention"] = convention;
  set_null(json, "mfu",
           run.recipe.device == DeviceChoice::cuda ? "no dense peak is known for this GPU and dtype"
                                                   : "a CPU has no dense peak in the table");
  json["headline"] = "slots: rows x length of the global batch, padding included, over the median step";
  set_or_null(json, "real_tokens_per_second", figures.real_tokens_per_second,
              "the steps do not tell tokens without padding");
  set_or_null(json, "trained_tokens_per_second", figures.trained_tokens_per_second, reason);
  set_or_null(json, "net_tokens_per_second", figures.net_tokens_per_second, reason);
  Json tokens;
  set_count(tokens, "slots", number_in(step, "tokens"), kNotMeasured);
  set_count(tokens, "real", number_in(step, "real_tokens"), "the steps do not tell tokens without padding");
  set_count(tokens, "trained", number_in(step, "loss_tokens"), kNotMeasured);
  json["tokens_per_step"] = tokens;
  set_or_null(json, "step_seconds", figures.step_seconds, reason);
  json["excluded_steps"] = figures.excluded_steps;
  json["excluded_phases"] = {"evaluation", "save"};
  json["job"] = job.name;
  return json;
}

/// Memory saved beside time spent. The time is that of recomputing alone, measured in the run.
Json checkpointing_json(const RunRecord& run) {
  Json json = checkpointing_estimate(run.recipe, run.estimate);
  const auto& job = undisturbed_job(run);
  const auto figures = throughput_of(job, job.last_attempt());
  const bool off = run.recipe.train.activation_checkpointing == ActivationCheckpointing::none;
  const bool timed = !off && figures.recompute_seconds && figures.step_seconds;
  const std::string reason = off ? "train.activation_checkpointing is none" : kNotMeasured;
  set_or_null(json, "recompute_seconds", timed ? figures.recompute_seconds : std::nullopt, reason);
  set_or_null(json, "share_of_step",
              timed ? std::optional(*figures.recompute_seconds / *figures.step_seconds) : std::nullopt, reason);
  return json;
}

Json loss_json(const RunRecord& run) {
  const auto& job = undisturbed_job(run);
  const auto losses = losses_of(job);
  const auto first = losses.empty() ? std::nullopt : losses.begin()->second;
  const auto last = losses.empty() ? std::nullopt : losses.rbegin()->second;
  Json json;
  set_or_null(json, "first", first, losses.empty() ? "no step was made" : "not a finite number");
  set_or_null(json, "last", last, losses.empty() ? "no step was made" : "not a finite number");
  set_or_null(json, "slope", slope_of(losses), "it takes two steps with finite losses");
  const Json* eval = job.world_size() > 0 ? job.last(0, "eval") : nullptr;
  set_or_null(json, "eval", number_in(eval, "loss"), "train.eval_interval is 0, or no evaluation was made");
  return json;
}

Json utilization_json(const RunRecord& run) {
  const auto& job = undisturbed_job(run);
  const char* no_gpu = run.recipe.device == DeviceChoice::cuda ? kNotMeasured : "no GPU takes part";
  Json rows = Json::array();
  for (const auto& figures : utilization_of(job, job.last_attempt())) {
    Json row{{"rank", figures.rank}};
    set_or_null(row, "compute_share", figures.compute_share, kNotMeasured);
    set_or_null(row, "gemm_gflops", figures.gemm_gflops, kNotMeasured);
    set_or_null(row, "model_gflops", figures.model_gflops, kNotMeasured);
    set_or_null(row, "ceiling_fraction", figures.ceiling_fraction, kNotMeasured);
    set_null(row, "gpu_percent", no_gpu);
    set_null(row, "power_watts", no_gpu);
    rows.push_back(row);
  }
  return rows;
}

Json checkpoint_json(const RunRecord& run) {
  const auto saves = checkpoint_figures_of(undisturbed_job(run));
  const auto restores = checkpoint_figures_of(run.job("train-1"));
  Json json;
  set_or_null(json, "save_seconds", saves.save_seconds, "no checkpoint was saved");
  set_count(json, "bytes", saves.bytes, "no checkpoint was saved");
  const bool timed = saves.bytes && saves.save_seconds && *saves.save_seconds > 0;
  set_or_null(json, "bytes_per_second", timed ? std::optional(*saves.bytes / *saves.save_seconds) : std::nullopt,
              "no save was timed");
  set_or_null(json, "restore_seconds", restores.restore_seconds, "nothing was restored");
  const auto comparison = compare_resume(run.job("train-1"), run.job("twin-1"));
  if (comparison.missing.empty() && comparison.num_compared > 0)
    json["resume_equal"] = comparison.equal();
  else
    set_null(json, "resume_equal", comparison.missing.empty() ? "nothing was compared" : comparison.missing);
  return json;
}

/// First and last time that any process of the run wrote.
void set_times(Json& report, const RunRecord& run) {
  std::string first, last;
  auto look_at = [&](const std::vector<Json>& events) {
    for (const auto& event : events) {
      const auto time = text_in(&event, "time");
      if (time.empty()) continue;
      if (first.empty() || time < first) first = time;
      if (time > last) last = time;
    }
  };
  for (const auto& [name, job] : run.jobs) {
    look_at(job.launcher);
    for (const auto& events : job.ranks) look_at(events);
  }
  for (const auto& [key, time] : {std::pair{"started", first}, std::pair{"ended", last}}) {
    if (time.empty())
      set_null(report, key, "no job was started");
    else
      report[key] = time;
  }
}

Json versions_of(const RunRecord& run) {
  const Json* of_machine = member_of(run.machine, "versions");
  Json versions = of_machine != nullptr ? *of_machine : Json::object();
  for (const auto& [name, job] : run.jobs) {
    const Json* start = job.world_size() > 0 ? job.last(0, "run") : nullptr;
    const Json* of_rank = start != nullptr ? member_of(*start, "versions") : nullptr;
    if (of_rank == nullptr || !of_rank->is_object()) continue;
    for (const auto& [key, value] : of_rank->items()) {
      versions[key] = value;
      versions.erase(key + "_reason");
    }
  }
  return versions;
}

/// The check nearest to its limit, or furthest beyond it.
Json worst_margin_of(const std::vector<Result>& results) {
  const Result* worst = nullptr;
  for (const auto& result : results) {
    if (result.margin && (worst == nullptr || *result.margin < *worst->margin)) worst = &result;
  }
  if (worst == nullptr) return nullptr;
  return {{"check", worst->check},
          {"margin", *worst->margin},
          {"measured", worst->measured},
          {"limit", worst->limit},
          {"unit", worst->unit}};
}

}  // namespace

Json make_report(const RunRecord& run, const std::vector<Result>& results) {
  const auto verdict = verdict_of(results);
  Json report{{"verdict", verdict.name}, {"exit_code", verdict.exit_code}, {"recipe", recipe_to_json(run.recipe)}};
  report["recipe_hash"] = recipe_hash(run.recipe);
  report["num_checks"] = {{"pass", verdict.num_pass},
                          {"fail", verdict.num_fail},
                          {"incomplete", verdict.num_incomplete},
                          {"skip", verdict.num_skip}};
  std::set<int> failing;
  report["checks"] = Json::array();
  for (const auto& result : results) {
    report["checks"].push_back(result_to_json(result));
    const bool bad = result.status == Status::fail || result.status == Status::incomplete;
    if (bad) failing.insert(result.ranks.begin(), result.ranks.end());
  }
  report["failing_ranks"] = failing;
  report["worst_margin"] = worst_margin_of(results);
  if (report["worst_margin"].is_null()) report["worst_margin_reason"] = "no check has a limit other than 0";
  report["memory"] = memory_of(run);
  if (report["memory"].empty()) report["memory_reason"] = "no training job was started";
  const auto& states_of = undisturbed_job(run);
  const Json* start = states_of.world_size() > 0 ? states_of.last(0, "run", states_of.last_attempt()) : nullptr;
  set_or_null(report, "state_bytes_per_parameter", number_in(start, "state_bytes_per_parameter"), kNotMeasured);
  report["formula"] = member_of(run.estimate, "formula") ? *member_of(run.estimate, "formula") : Json();
  if (report["formula"].is_null()) report["formula_reason"] = "there is no estimate";
  report["out_of_memory"] = out_of_memory_json(run);
  report["throughput"] = throughput_json(run);
  report["activation_checkpointing"] = checkpointing_json(run);
  report["loss"] = loss_json(run);
  report["utilization"] = utilization_json(run);
  if (report["utilization"].empty()) report["utilization_reason"] = "no training job was started";
  report["checkpoint"] = checkpoint_json(run);
  set_times(report, run);
  report["versions"] = versions_of(run);
  report["machine"] = run.machine;
  if (run.machine.is_null()) report["machine_reason"] = "the run folder has no machine.json";
  return report;
}

namespace {

/// The first snapshot of a rank that ran out of device memory is the run's.
void copy_memory_snapshot(const std::filesystem::path& folder, const RunRecord& run) {
  for (const auto& row : out_of_memory_json(run)) {
    const auto job = folder / "jobs" / text_in(&row, "job");
    const int rank = row["rank"].get<int>();
    const bool whole = std::filesystem::exists(memory_snapshot_file(job, rank)) &&
                       std::filesystem::exists(memory_trace_file(job, rank));
    if (!whole) continue;
    write_file_durably(folder / kSnapshotFile, read_text_file(memory_snapshot_file(job, rank)));
    write_file_durably(folder / kTraceFile, read_text_file(memory_trace_file(job, rank)));
    return;
  }
}

}  // namespace

std::set<std::string> report_files() { return {kJsonFile, kMarkdownFile, kSnapshotFile, kTraceFile}; }

Json write_reports(const std::filesystem::path& folder, const RunRecord& run, const std::vector<Result>& results) {
  const auto report = make_report(run, results);
  write_file_durably(folder / kJsonFile, dump_json_pretty(report));
  copy_memory_snapshot(folder, run);
  write_file_durably(folder / kMarkdownFile, report_markdown(report));
  return report;
}

}  // namespace assay
