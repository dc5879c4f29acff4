#include "harness/acceptance/run_record.h"

#include <algorithm>
#include <cstdio>

#include "harness/core/error.h"
#include "harness/core/event.h"
#include "harness/core/files.h"
#include "harness/core/units.h"
#include "harness/launch/rank_failure.h"

namespace assay {
namespace {

bool is_of(const Json& event, std::string_view kind, int attempt) {
  return text_in(&event, "kind") == kind && (attempt == 0 || event.value("attempt", 0) == attempt);
}

/// The words of an error event that a rank wrote itself.
std::string sentence_of(const Json& error) {
  std::string text = "rank " + std::to_string(error.value("rank", -1)) + " failed";
  if (const auto phase = text_in(&error, "phase"); !phase.empty()) text += " in phase " + phase;
  if (const auto step = number_in(&error, "step")) text += " of step " + format_number(*step);
  return text + " (" + text_in(&error, "error") + "): " + text_in(&error, "message");
}

/// From the launcher's root cause, which has its sentence, or from a rank's error event.
JobFailure failure_from(const Json& cause) {
  JobFailure failure;
  const auto sentence = text_in(&cause, "sentence");
  failure.sentence = sentence.empty() ? sentence_of(cause) : sentence;
  failure.error = text_in(&cause, "error");
  failure.phase = text_in(&cause, "phase");
  failure.reason = text_in(&cause, "reason");
  const auto rank = number_in(&cause, cause.contains("failed_rank") ? "failed_rank" : "rank");
  if (rank) failure.ranks = {static_cast<int>(*rank)};
  return failure;
}

Error damaged(const std::filesystem::path& path, const std::string& problem) {
  return {ErrorKind::data, path.string() + " is damaged (" + problem +
                               "); put back a whole copy of the file, or begin anew with another --output"};
}

/// A file with one JSON object; null if it is missing.
Json read_object(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return nullptr;
  const auto text = read_text_file(path);
  Json object;
  try {
    object = parse_json(text, "JSON");
  } catch (const Error& error) {
    throw damaged(path, error.what());
  }
  if (!object.is_object()) throw damaged(path, "it is no JSON object");
  return object;
}

}  // namespace

std::optional<double> number_in(const Json* object, const std::string& key) {
  if (object == nullptr || !object->is_object()) return std::nullopt;
  const auto found = object->find(key);
  return found != object->end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

const Json* member_of(const Json& object, const std::string& key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string text_in(const Json* object, const std::string& key) {
  if (object == nullptr || !object->is_object()) return "";
  const auto found = object->find(key);
  return found != object->end() && found->is_string() ? found->get<std::string>() : "";
}

int JobRecord::last_attempt() const {
  int attempt = 0;
  auto look_at = [&](const std::vector<Json>& events) {
    for (const auto& event : events) attempt = std::max(attempt, event.value("attempt", 0));
  };
  look_at(launcher);
  for (const auto& events_of_rank : ranks) look_at(events_of_rank);
  return attempt;
}

std::vector<const Json*> JobRecord::events(int rank, std::string_view kind, int attempt) const {
  std::vector<const Json*> found;
  if (static_cast<std::size_t>(rank) >= ranks.size()) return found;
  for (const auto& event : ranks.at(static_cast<std::size_t>(rank))) {
    if (is_of(event, kind, attempt)) found.push_back(&event);
  }
  return found;
}

const Json* JobRecord::last(int rank, std::string_view kind, int attempt) const {
  const auto found = events(rank, kind, attempt);
  return found.empty() ? nullptr : found.back();
}

const Json* JobRecord::find(int rank, std::string_view kind, const std::string& key, const Json& value,
                            int attempt) const {
  for (const auto* event : events(rank, kind, attempt)) {
    if (event->contains(key) && (*event)[key] == value) return event;
  }
  return nullptr;
}

const Json* JobRecord::planned_kill(int attempt) const {
  for (const auto& event : launcher) {
    if (is_of(event, "check", attempt) && text_in(&event, "name") == "planned_kill") return &event;
  }
  return nullptr;
}

const Json* JobRecord::launcher_end(int attempt) const {
  const Json* found = nullptr;
  for (const auto& event : launcher) {
    if (is_of(event, "end", attempt)) found = &event;
  }
  return found;
}

const Json* JobRecord::root_cause(int attempt) const {
  const Json* end = launcher_end(attempt);
  return end == nullptr ? nullptr : member_of(*end, "root_cause");
}

/// The launcher's word on a rank that failed by itself in an attempt with a planned kill, or null.
const Json* JobRecord::failure_beside_planned_kill(int attempt) const {
  const Json* kill = planned_kill(attempt);
  for (const auto& event : launcher) {
    if (kill == nullptr || !is_of(event, "error", attempt) || text_in(&event, "error") == "communication") continue;
    if (number_in(&event, "failed_rank") != number_in(kill, "victim")) return &event;
  }
  return nullptr;
}

bool JobRecord::ended_by_planned_kill(int attempt) const {
  const Json* kill = planned_kill(attempt);
  const Json* cause = root_cause(attempt);
  return kill != nullptr && cause != nullptr && number_in(cause, "rank") == number_in(kill, "victim") &&
         number_in(cause, "signal") == number_in(kill, "signal") && failure_beside_planned_kill(attempt) == nullptr;
}

std::optional<JobFailure> JobRecord::failure(int attempt) const {
  const Json* end = launcher_end(attempt);
  const auto signal = number_in(end, "interrupted_by");
  if (number_in(end, "exit_code") == 0.0) return std::nullopt;  // also where a signal came after the last step
  JobFailure failure;
  if (ended_by_planned_kill(attempt)) {
    failure.sentence = "rank " + format_number(number_in(planned_kill(attempt), "victim").value_or(-1)) +
                       " was killed on purpose in attempt " + std::to_string(attempt) +
                       ", and the job was not started again";
    failure.interrupted = true;
    return failure;
  }
  if (const Json* other = failure_beside_planned_kill(attempt)) return failure_from(*other);
  const bool launched =
      std::any_of(launcher.begin(), launcher.end(), [&](const Json& event) { return is_of(event, "run", attempt); });
  failure.sentence = end == nullptr ? (launched ? "the launcher of " + name + " died" : name + " came to no end") +
                                          " in attempt " + std::to_string(attempt)
                                    : name + " ended with exit code " + std::to_string(end->value("exit_code", -1));
  const Json* cause = root_cause(attempt);
  if (cause != nullptr) {
    failure = failure_from(*cause);
  } else if (signal) {
    failure.sentence = "interrupted by " + signal_name(static_cast<int>(*signal));
    failure.interrupted = true;
    return failure;
  }
  // A lost connection is what the others see when one rank fails: that rank's own error says more.
  const bool was_killed = number_in(cause, "signal").has_value();
  const bool may_be_consequence = !was_killed && (failure.error.empty() || failure.error == "communication");
  for (int rank = 0; may_be_consequence && rank < world_size(); ++rank) {
    const Json* error = last(rank, "error", attempt);
    if (error == nullptr || text_in(error, "error") == "communication") continue;
    return failure_from(*error);
  }
  return failure;
}

const JobRecord& RunRecord::job(const std::string& name) const {
  static const JobRecord never_started;
  const auto found = jobs.find(name);
  return found == jobs.end() ? never_started : found->second;
}

Json read_job_file(const std::filesystem::path& folder) {
  constexpr int kMostRanks = 1 << 16;
  const auto path = folder / "job.json";
  auto job = read_object(path);
  if (job.is_null()) return job;
  const auto world_size = job.find("world_size");
  const bool good =
      world_size != job.end() && world_size->is_number_integer() && *world_size >= 1 && *world_size <= kMostRanks;
  if (!good) throw damaged(path, "world_size is no number of ranks");
  return job;
}

JobRecord read_job_progress(const std::filesystem::path& folder) {
  JobRecord record;
  record.name = folder.filename().string();
  record.job = read_job_file(folder);
  if (record.started()) record.launcher = read_events(folder / "events" / "launcher.jsonl");
  return record;
}

JobRecord read_job(const std::filesystem::path& folder) {
  auto record = read_job_progress(folder);
  const int world_size = record.started() ? record.job["world_size"].get<int>() : 0;
  for (int rank = 0; rank < world_size; ++rank) {
    record.ranks.push_back(read_events(rank_event_file(folder, rank)));
  }
  return record;
}

RunRecord read_run(const std::filesystem::path& folder, Recipe recipe) {
  RunRecord run;
  run.recipe = std::move(recipe);
  run.machine = read_object(folder / "machine.json");
  run.estimate = read_object(folder / "jobs" / "estimate-1" / "estimate.json");
  if (std::filesystem::exists(folder / "limits.yaml")) run.limits = load_limits(folder / "limits.yaml");
  for (const char* name : {"collective-1", "single-1", "train-1", "twin-1"}) {
    run.jobs[name] = read_job(folder / "jobs" / name);
    run.jobs[name].remedies = read_object(folder / "jobs" / name / kRemediesFile);
  }
  return run;
}

}  // namespace assay
