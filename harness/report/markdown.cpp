#include <array>
#include <cmath>
#include <cstdio>
#include <set>

#include "harness/core/units.h"
#include "harness/report/report.h"

namespace assay {
namespace {

/// A value for a table cell: nothing in it ends the cell or the line.
std::string cell(const Json& value) {
  if (value.is_null()) return "-";
  const auto text = value.is_string() ? value.get<std::string>() : dump_json(value);
  std::string escaped;
  for (const char letter : text) {
    if (letter == '|')
      escaped += "\\|";
    else
      escaped += letter == '\n' ? ' ' : letter;
  }
  return escaped;
}

std::string row(const std::vector<std::string>& cells) {
  std::string text = "|";
  for (const auto& part : cells) text += " " + part + " |";
  return text + "\n";
}

std::string header(const std::vector<std::string>& names) {
  return row(names) + row(std::vector<std::string>(names.size(), "---"));
}

/// A number of bytes with its unit; "-" for null, and the reason if the row has one.
std::string bytes_of(const Json& object, const std::string& key) {
  const Json* value = member_of(object, key);
  if (value != nullptr && value->is_number()) return format_bytes(value->get<std::int64_t>());
  const auto reason = text_in(&object, key + "_reason");
  return reason.empty() ? "-" : "- (" + cell(reason) + ")";
}

std::string number_of(const Json& object, const std::string& key, const std::string& unit = "") {
  const auto value = number_in(&object, key);
  if (!value) {
    const auto reason = text_in(&object, key + "_reason");
    return reason.empty() ? "-" : "- (" + cell(reason) + ")";
  }
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), std::fabs(*value) >= 1e6 ? "%.0f" : "%.6g", *value);
  return text.data() + (unit.empty() ? "" : " " + unit);
}

std::string top(const Json& report) {
  const auto& counts = report["num_checks"];
  std::string text = "# " + report["verdict"].get<std::string>() + ": " + cell(report["recipe"]["name"]) + "\n\n";
  text += cell(counts["pass"]) + " passed, " + cell(counts["fail"]) + " failed, " + cell(counts["incomplete"]) +
          " incomplete, " + cell(counts["skip"]) + " skipped; exit code " + cell(report["exit_code"]) + ".\n\n";
  const auto& worst = report["worst_margin"];
  if (worst.is_object()) {
    std::array<char, 64> percent{};
    std::snprintf(percent.data(), percent.size(), "%.1f %%", 100 * worst["margin"].get<double>());
    text += "Worst margin: " + std::string(percent.data()) + " at " + cell(worst["check"]) + " (measured " +
            cell(worst["measured"]) + ", limit " + cell(worst["limit"]) + " " + cell(worst["unit"]) + ").\n\n";
  }
  std::string ranks;
  for (const auto& rank : report["failing_ranks"]) ranks += (ranks.empty() ? "" : ", ") + dump_json(rank);
  text += "Ranks named by a check that did not pass: " + (ranks.empty() ? "none" : ranks) + ".\n\n";
  for (const auto& check : report["checks"]) {
    if (check["status"] != "fail" && check["status"] != "incomplete") continue;
    text += "- **" + cell(check["status"]) + "** " + cell(check["check"]) + ": " + cell(check["reason"]) + "\n";
  }
  return text + "\n";
}

/// What was asked and where it ran: the common measure for quotes and acceptance.
std::string baseline(const Json& report) {
  const auto& recipe = report["recipe"];
  const auto& train = recipe["train"];
  const auto& parallel = recipe["parallel"];
  const Json* versions = member_of(report, "versions");
  auto machine = [&](const std::string& outer, const std::string& inner) {
    const Json* part = member_of(report["machine"], outer);
    const Json* value = part != nullptr && !inner.empty() ? member_of(*part, inner) : part;
    return value != nullptr ? *value : Json();
  };
  const auto capacity = bytes_of(recipe, "device_memory");
  std::string text = "## Baseline\n\n" + header({"What", "Asked"});
  auto line = [&](const std::string& what, const std::string& value) { text += row({what, value}); };
  line("Model", cell(recipe["model"]["path"]) + ", overrides " + cell(recipe["model"]["config"]));
  line("Mode", cell(recipe["mode"]));
  line("Precision (weights and compute)", cell(train["precision"]));
  const auto moments = text_in(&recipe["optimizer"], "moment_dtype");  // open in a recipe that was not resolved
  line("Optimizer, moments, sharding", cell(recipe["optimizer"]["name"]) + ", moments in " +
                                           (moments.empty() ? "-" : moments) + ", strategy " +
                                           cell(parallel["strategy"]));
  line("State, bytes a parameter and rank (measured)", number_of(report, "state_bytes_per_parameter"));
  line("Sequence length", cell(recipe["data"]["sequence_length"]));
  line("Micro batch, accumulation, global batch", cell(train["micro_batch_size"]) + ", " +
                                                      cell(train["gradient_accumulation_steps"]) + ", " +
                                                      cell(train["global_batch_size"]));
  line("Activation checkpointing", cell(train["activation_checkpointing"]));
  line("Processes, servers", cell(parallel["nproc_per_node"]) + ", 1");
  line("Device, its memory", cell(recipe["device"]) + ", " + (capacity == "-" ? "not stated" : capacity));
  const Json* plan = member_of(recipe, "plan");
  line("Goal", plan != nullptr && member_of(*plan, "days") != nullptr ? "must finish in time" : "must start");
  line("Checkpoints, restore", "every " + cell(recipe["checkpoint"]["interval"]) + " steps in the run folder, resume " +
                                   cell(recipe["resume"]));
  text += "\n" + header({"Where", "Found"});
  line("Host, kernel", cell(machine("host", "")) + ", " + cell(machine("kernel", "")));
  line("CPU, cores for this process",
       cell(machine("cpu", "model")) + ", " + cell(machine("cpu", "num_cores_available")));
  const auto memory = machine("memory", "");
  line("Memory, available", bytes_of(memory, "total_bytes") + ", " + bytes_of(memory, "available_bytes"));
  line("NUMA nodes", std::to_string(machine("numa_nodes", "").size()));
  const auto gpus = machine("gpus", "found");
  line("GPUs", gpus.empty() ? "none found: " + cell(machine("gpus", "reason")) : cell(gpus));
  line("Versions", versions != nullptr ? cell(*versions) : "-");
  const auto environment = machine("environment", "");
  line("Environment that changes results", environment.empty() ? "none set" : cell(environment));
  return text + "\n";
}

std::string checks(const Json& report) {
  std::string text = "## Checks\n\n" + header({"Check", "Status", "Measured", "Limit", "Unit", "Reason", "Evidence"});
  for (const auto& check : report["checks"]) {
    const auto evidence = text_in(&check, "evidence");
    text += row({cell(check["check"]), cell(check["status"]), cell(check["measured"]), cell(check["limit"]),
                 cell(check["unit"]), cell(check["reason"]),
                 evidence.empty() ? "-" : "[" + evidence + "](" + evidence + ")"});
  }
  return text + "\n";
}

std::string out_of_memory(const Json& report) {
  const Json* rows = member_of(report, "out_of_memory");
  if (rows == nullptr || rows->empty()) return "";
  std::string text = "## Out of device memory\n\n" +
                     header({"Job", "Rank", "Step", "Phase", "Unit", "Asked for", "Allocated", "Reserved", "Capacity",
                             "Largest free block", "Reserved but free", "What would have fitted"});
  const auto of = [](const Json& object, const char* key) { return cell(object.value(key, Json())); };
  for (const auto& found : *rows) {
    text +=
        row({of(found, "job"), of(found, "rank"), of(found, "step"), of(found, "phase"), of(found, "unit"),
             bytes_of(found, "requested_bytes"), bytes_of(found, "allocated_bytes"), bytes_of(found, "reserved_bytes"),
             bytes_of(found, "capacity_bytes"), bytes_of(found, "largest_free_block_bytes"),
             number_of(found, "fragmentation"), of(found, "nearest_remedy")});
  }
  text += "\n" + header({"Job", "Rank", "Category, alive then", "Bytes"});
  for (const auto& found : *rows) {
    const Json categories = found.value("by_category", Json::object());
    for (const auto& [name, bytes] : categories.items()) {
      text += row({of(found, "job"), of(found, "rank"), name, bytes_of(categories, name)});
    }
  }
  return text +
         "\nThe history of allocations: memory_snapshot.pickle for pytorch.org/memory_viz, trace.json for a viewer "
         "of Chrome traces.\n\n";
}

std::string memory(const Json& report) {
  std::string text = "## Memory\n\nPeaks: closed formula (screening), dry run (the program itself), measured.\n\n";
  text += header({"Rank", "Formula", "Allocated, dry run", "Allocated, measured", "Reserved, dry run",
                  "Reserved, measured", "Device used"});
  for (const auto& rank : report["memory"]) {
    text += row({cell(rank["rank"]), bytes_of(rank, "formula_bytes"), bytes_of(rank, "dry_run_allocated_bytes"),
                 bytes_of(rank, "measured_allocated_bytes"), bytes_of(rank, "dry_run_reserved_bytes"),
                 bytes_of(rank, "measured_reserved_bytes"), bytes_of(rank, "device_used_bytes")});
  }
  if (report["formula"].is_object()) {
    text += "\n" + header({"Term of the formula", "Bytes"});
    for (const auto& [term, bytes] : report["formula"].items()) text += row({term, bytes_of(report["formula"], term)});
  }
  for (const auto& [key, what] :
       {std::pair{"by_category", "Category, alive at the peak"}, std::pair{"by_phase", "Phase, its peak"}}) {
    text += "\n" + header({"Rank", what, "Dry run", "Measured"});
    for (const auto& rank : report["memory"]) {
      const auto& predicted = rank[std::string("dry_run_") + key];
      std::set<std::string> names;
      for (const auto& [name, bytes] : predicted.items()) names.insert(name);
      for (const auto& [name, bytes] : rank[key].items()) names.insert(name);
      for (const auto& name : names)
        text += row({cell(rank["rank"]), name, bytes_of(predicted, name), bytes_of(rank[key], name)});
    }
  }
  return text + "\n";
}

std::string figures(const Json& report) {
  const auto& speed = report["throughput"];
  std::string text = "## Speed\n\n" + header({"Figure", "Value"});
  for (const auto& [key, what] :
       {std::pair{"tokens_per_second", "Tokens a second (slots: the headline figure)"},
        std::pair{"tokens_per_second_per_gpu", "... for each rank"},
        std::pair{"real_tokens_per_second", "... without padding"},
        std::pair{"trained_tokens_per_second", "... with a label"},
        std::pair{"net_tokens_per_second", "Net slots a second, saves and evaluation included"},
        std::pair{"step_seconds", "Median step, seconds"}, std::pair{"model_flops_per_token", "Model FLOPs a token"},
        std::pair{"mfu", "MFU"}}) {
    text += row({what, number_of(speed, key)});
  }
  text += row({"Steps left out as warm-up", cell(speed["excluded_steps"])});
  text += row({"FLOPs convention", cell(speed["flops_convention"])});
  text += row({"Tokens a step", "slots " + number_of(speed["tokens_per_step"], "slots") + ", real " +
                                    number_of(speed["tokens_per_step"], "real") + ", trained " +
                                    number_of(speed["tokens_per_step"], "trained")});
  const auto& checkpointing = report["activation_checkpointing"];
  text += "\n## Activation checkpointing\n\n" +
          header({"Mode", "Peak without it (dry run)", "Memory saved", "Recomputing, seconds a step",
                  "Share of the step"}) +
          row({cell(checkpointing["mode"]), bytes_of(checkpointing, "peak_bytes_without"),
               bytes_of(checkpointing, "saved_bytes"), number_of(checkpointing, "recompute_seconds"),
               number_of(checkpointing, "share_of_step")});
  const auto& loss = report["loss"];
  text += "\n## Loss\n\n" + header({"First", "Last", "Slope a step", "Evaluation"}) +
          row({number_of(loss, "first"), number_of(loss, "last"), number_of(loss, "slope"), number_of(loss, "eval")});
  text += "\n## Utilization\n\n" + header({"Rank", "Compute share", "Fraction of the GEMM ceiling", "GPU", "Power"});
  for (const auto& rank : report["utilization"]) {
    text += row({cell(rank["rank"]), number_of(rank, "compute_share"), number_of(rank, "ceiling_fraction"),
                 number_of(rank, "gpu_percent"), number_of(rank, "power_watts")});
  }
  const auto& saved = report["checkpoint"];
  text += "\n## Checkpoints\n\n" + header({"Save", "Bytes", "Bytes a second", "Restore", "Resume equal to the twin"}) +
          row({number_of(saved, "save_seconds", "s"), bytes_of(saved, "bytes"), number_of(saved, "bytes_per_second"),
               number_of(saved, "restore_seconds", "s"),
               saved["resume_equal"].is_null() ? "- (" + cell(saved["resume_equal_reason"]) + ")"
                                               : cell(saved["resume_equal"])});
  return text;
}

}  // namespace

std::string report_markdown(const Json& report) {
  return top(report) + baseline(report) + checks(report) + out_of_memory(report) + memory(report) + figures(report) +
         "\nStarted " + cell(report["started"]) + ", ended " + cell(report["ended"]) + ". Recipe hash " +
         cell(report["recipe_hash"]) + ".\n";
}

}  // namespace assay
