#include <string>
#include <vector>

#include "harness/acceptance/estimate.h"
#include "harness/acceptance/evaluate.h"
#include "harness/acceptance/remedies.h"
#include "harness/acceptance/stage_checks.h"
#include "harness/core/error.h"
#include "harness/core/units.h"

namespace assay {
namespace {

const Json* nested(const Json& object, const std::string& outer, const std::string& inner) {
  const Json* found = member_of(object, outer);
  return found == nullptr ? nullptr : member_of(*found, inner);
}

void check_facts(const RunRecord& run, StageChecks& checks) {
  std::string missing;
  for (const char* key : {"host", "kernel"}) {
    if (member_of(run.machine, key) == nullptr) missing += std::string(missing.empty() ? "" : ", ") + key;
  }
  const std::vector<std::pair<std::string, std::string>> pairs{
      {"cpu", "model"}, {"cpu", "num_cores_available"}, {"memory", "available_bytes"}, {"disk", "free_bytes"}};
  for (const auto& [outer, inner] : pairs) {
    if (nested(run.machine, outer, inner) == nullptr) {
      missing += (missing.empty() ? "" : ", ") + outer + "." + inner;
    }
  }
  if (!missing.empty()) {
    checks.add("facts", Status::incomplete, "not readable on this machine: " + missing);
    return;
  }
  auto& result = checks.add("facts", Status::pass);
  result.measured = text_in(&run.machine, "host") + ", " + text_in(member_of(run.machine, "cpu"), "model") + ", " +
                    dump_json(*nested(run.machine, "cpu", "num_cores_available")) + " cores";
}

std::optional<double> margin_below(double needed, double available) {
  return available > 0 ? std::optional((available - needed) / available) : std::nullopt;
}

/// A need in bytes against what is there.
void check_room(StageChecks& checks, const std::string& name, std::optional<double> needed, const Json* available,
                const std::string& what, const std::string& advice) {
  if (!needed) {  // stage estimate says why, and ends the run if it must
    checks.add(name, Status::incomplete, "there is no estimate of what is needed");
    return;
  }
  if (available == nullptr || !available->is_number()) {
    checks.missing(name, what + " of this machine is not known");
    return;
  }
  const auto free_bytes = available->get<double>();
  const auto text = format_bytes(static_cast<std::int64_t>(*needed)) + " needed, " +
                    format_bytes(static_cast<std::int64_t>(free_bytes)) + " of " + what + " available";
  const bool enough = *needed <= free_bytes;
  auto& result = checks.add(name, enough ? Status::pass : Status::fail, enough ? text : text + ": " + advice);
  result.measured = static_cast<std::int64_t>(*needed);
  result.limit = static_cast<std::int64_t>(free_bytes);
  result.margin = margin_below(*needed, free_bytes);
  result.unit = "bytes";
}

void check_cores(const RunRecord& run, StageChecks& checks) {
  const Json* cores = nested(run.machine, "cpu", "num_cores_available");
  if (cores == nullptr) return;
  const auto wanted = world_size_of(run.recipe) * run.recipe.train.num_threads;
  auto& result = checks.add("cores", Status::pass);
  result.measured = wanted;
  result.limit = *cores;
  result.unit = "threads";
  if (wanted > cores->get<std::int64_t>()) {
    result.reason = std::to_string(wanted) + " threads share " + dump_json(*cores) + " cores: times are not those of " +
                    std::to_string(world_size_of(run.recipe)) + " devices";
    result.action = Action::watch;
  }
}

void check_gpus(const RunRecord& run, StageChecks& checks) {
  const Json* found = nested(run.machine, "gpus", "found");
  const bool any = found != nullptr && !found->empty();
  const bool wanted = run.recipe.device == DeviceChoice::cuda;
  std::string names;
  if (any) {
    for (const auto& gpu : *found)
      names += (names.empty() ? "" : ", ") + text_in(&gpu, "model") + " " + text_in(&gpu, "bus");
  }
  if (any && !wanted) {
    checks.add("gpus", Status::skip, "not tested, because device is cpu: " + names);
  } else if (!any) {
    const auto reason = text_in(member_of(run.machine, "gpus"), "reason");
    checks.add("gpus", wanted ? Status::fail : Status::skip, "none found" + (reason.empty() ? "" : ": " + reason));
  } else {
    checks.add("gpus", Status::pass).measured = names;
  }
  checks.add("not_tested", Status::skip,
             "links between devices, cooling, sustained load and other servers are not examined by this run");
}

/// Bytes of the state that all ranks together save, under any strategy: masters and two moments.
std::optional<double> state_bytes(const RunRecord& run) {
  const Json* dry_run = member_of(run.estimate, "dry_run");
  const auto parameters = number_in(dry_run, "parameters");
  const auto trainable = number_in(dry_run, "trainable_parameters");
  if (!parameters || !trainable) return std::nullopt;
  const double master = run.recipe.train.precision == Precision::pure_bf16 ? 2 : 4;
  const double moment = run.recipe.optimizer.moment_dtype == FloatType::bf16 ? 2 : 4;
  return *parameters * master + *trainable * 2 * moment;
}

}  // namespace

std::vector<Result> evaluate_machine(const RunRecord& run) {
  StageChecks checks("machine", "machine.json");
  check_facts(run, checks);
  check_cores(run, checks);
  const Json* dry_run = member_of(run.estimate, "dry_run");
  const auto ranks = static_cast<double>(world_size_of(run.recipe));
  if (run.recipe.device != DeviceChoice::cuda) {
    const auto peak = number_in(dry_run, "peak_allocated_bytes");
    check_room(checks, "memory", peak ? std::optional(*peak * ranks) : std::nullopt,
               nested(run.machine, "memory", "available_bytes"), "memory",
               "use fewer processes, a smaller train.micro_batch_size, or a machine with more memory");
  }
  // As many checkpoints as are kept, one more while the next is written, for the run and its twin.
  const auto disk = state_bytes(run);
  const auto num_checkpoints = 2 * static_cast<double>(run.recipe.checkpoint.keep_latest + 1);
  check_room(checks, "disk", disk ? std::optional(*disk * num_checkpoints) : std::nullopt,
             nested(run.machine, "disk", "free_bytes"), "disk at the run folder",
             "free some, or give another --output");
  check_gpus(run, checks);
  return checks.take();
}

namespace {

std::string fit_sentence(const RunRecord& run, const Fit& fit) {
  if (fit.fits && fit.num_alloc_retries > 0) {
    return "fits only because the allocator gives back what it keeps, " + std::to_string(fit.num_alloc_retries) +
           " times; that costs time";
  }
  if (fit.fits) return format_bytes(fit.headroom_bytes()) + " of headroom";
  std::string sentence = "the plan needs " + format_bytes(fit.peak_bytes) + " and has " +
                         format_bytes(fit.usable_bytes) + ": " + format_bytes(-fit.headroom_bytes()) + " too little";
  const auto remedy = nearest_remedy(run.estimate);
  return sentence + (remedy.empty() ? "; no change that was tried makes it fit" : ". What would do: " + remedy);
}

}  // namespace

std::vector<Result> evaluate_estimate(const RunRecord& run) {
  StageChecks checks("estimate", "jobs/estimate-1/estimate.json");
  const Json* dry_run = member_of(run.estimate, "dry_run");
  const auto peak = number_in(dry_run, "peak_allocated_bytes");
  if (!peak) {
    const Json* error = member_of(run.estimate, "error");
    const auto kind = text_in(error, "error");
    const bool rejects = !kind.empty() && exit_code_of(error_kind_from_name(kind)) == exit_rejected;
    const auto reason = error == nullptr ? "there is no estimate" : "the dry run failed: " + text_in(error, "message");
    checks.missing("dry_run", reason).status = rejects ? Status::fail : Status::incomplete;
    return checks.take();
  }
  auto& measured =
      checks.add("dry_run", Status::pass, "peak of the fullest rank, by the program itself on meta tensors");
  measured.measured = static_cast<std::int64_t>(*peak);
  measured.unit = "bytes";
  measured.seconds = number_in(dry_run, "seconds");

  if (const auto total = number_in(member_of(run.estimate, "formula"), "total")) {
    auto& formula = checks.add("formula", Status::pass, "closed formula: screening, not acceptance");
    formula.measured = static_cast<std::int64_t>(*total);
    formula.unit = "bytes";
  } else {
    checks.missing("formula", "the closed formula was not computed");
  }

  if (!run.recipe.device_memory_bytes) {
    checks.add("fits", Status::skip, "no device_memory is stated, and a CPU process has no capacity of its own");
    return checks.take();
  }
  const auto fit = fit_of(dry_run);
  if (!fit) {
    checks.missing("fits", "the dry run does not say whether the plan fits");
    return checks.take();
  }
  auto& fits = checks.add("fits", fit->fits ? Status::pass : Status::fail, fit_sentence(run, *fit));
  fits.measured = fit->peak_bytes;
  fits.limit = fit->usable_bytes;
  fits.margin = margin_below(static_cast<double>(fit->peak_bytes), static_cast<double>(fit->usable_bytes));
  fits.unit = "bytes";
  return checks.take();
}

}  // namespace assay
