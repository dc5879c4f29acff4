#include "harness/cli/replay_command.h"

#include <bit>
#include <cstdio>
#include <filesystem>

#include "harness/core/error.h"
#include "harness/core/files.h"
#include "harness/core/json.h"
#include "harness/core/log.h"
#include "harness/core/units.h"
#include "harness/memory/alloc_conf.h"
#include "harness/memory/allocator_settings.h"
#include "harness/memory/replay.h"
#include "harness/recipe/read_fields.h"

namespace assay {
namespace {

/// Events kept for the files of --output.
constexpr std::size_t kMaxHistory = 250'000;

bool is_key(const std::string& key) { return key.starts_with("allocator.") || key == "device_memory"; }

/// The recorded settings, and over them those of KEY=VALUE.
AllocatorSettings settings_of(const AllocatorTrace& trace, const std::vector<std::string>& overrides) {
  Recipe recipe;
  auto& options = recipe.allocator;
  options.max_split_size_bytes = trace.settings.max_split_size_bytes;
  options.expandable_segments = trace.settings.expandable_segments;
  if (trace.settings.roundup_power2_divisions > 0)
    options.roundup_power2_divisions = trace.settings.roundup_power2_divisions;
  if (trace.settings.garbage_collection_threshold > 0)
    options.garbage_collection_threshold = trace.settings.garbage_collection_threshold;
  auto fields = recipe_fields(recipe);
  std::erase_if(fields, [](const Field& field) { return !is_key(field.key); });
  for (const auto& word : overrides) {
    if (word.starts_with("model."))
      throw Error(ErrorKind::usage, word + ": replay takes device_memory and the keys of the section allocator");
  }
  Problems problems;
  Places places;
  read_overrides(fields, overrides, places, problems);
  const auto divisions = options.roundup_power2_divisions.value_or(1);
  if (!std::has_single_bit(static_cast<std::uint64_t>(divisions)))
    problems.add({"command line"}, "allocator.roundup_power2_divisions",
                 std::to_string(divisions) + " is no power of two");
  if (recipe.device_memory_bytes.value_or(0) > kMaxTraceInUse)
    problems.add({"command line"}, "device_memory", "more than 2^50 bytes");
  problems.throw_if_any();
  if (options.garbage_collection_threshold && !recipe.device_memory_bytes)
    log_warning(
        "garbage_collection_threshold works only where device_memory is given, as in PyTorch with a memory fraction");
  return allocator_settings(recipe);
}

Json json_of(const AllocatorTrace& trace, const ReplayOptions& options, const ReplayResult& result) {
  const auto& figures = result.statistics;
  Json json{{"events", trace.num_events},
            {"peak_allocated_bytes", figures.allocated.peak},
            {"peak_reserved_bytes", figures.reserved.peak},
            {"final_allocated_bytes", figures.allocated.current},
            {"final_reserved_bytes", figures.reserved.current},
            {"num_segments", static_cast<std::int64_t>(result.segments.size())},
            {"num_ooms", figures.num_ooms},
            {"largest_free_block_bytes", result.largest_free_block_bytes},
            {"peak_requested_bytes", figures.requested.peak},
            {"num_alloc_retries", figures.num_alloc_retries},
            {"num_left_out", result.num_left_out},
            {"first_oom", nullptr},
            {"meets_recording", nullptr},
            {"first_difference", nullptr},
            {"notes", trace.notes}};
  if (const auto& oom = result.first_oom) {
    json["first_oom"] = {{"event", oom->event},
                         {trace.place_word, oom->place},
                         {"request_bytes", oom->bytes},
                         {"allocated_bytes", oom->allocated_bytes},
                         {"reserved_bytes", oom->reserved_bytes},
                         {"largest_free_block_bytes", oom->largest_free_block_bytes}};
  }
  if (options.as_recorded) {
    json["meets_recording"] = result.first_difference.empty();
    if (!result.first_difference.empty()) json["first_difference"] = result.first_difference;
  }
  return json;
}

std::string sentence_of(const ReplayOptions& options, const ReplayResult& result) {
  if (!options.as_recorded) return "other settings than recorded: not compared with the recording\n";
  if (result.first_difference.empty()) return "the model meets the recording: every address, every segment, the end\n";
  return "the model differs from the recording, first in " + result.first_difference + "\n";
}

std::string oom_text(const AllocatorTrace& trace, const ReplayResult& result) {
  if (!result.first_oom) return "";
  const auto& oom = *result.first_oom;
  std::string text = "first out of memory: event " + std::to_string(oom.event) + " (" + trace.place_word + " " +
                     std::to_string(oom.place) + "), request " + format_bytes(oom.bytes) + ", allocated " +
                     format_bytes(oom.allocated_bytes) + ", reserved " + format_bytes(oom.reserved_bytes) +
                     ", largest free block " + format_bytes(oom.largest_free_block_bytes) + "\n";
  if (result.num_left_out > 0) {
    text +=
        std::to_string(result.num_left_out) +
        " requests that failed were left out, with their frees; the program itself would have stopped at the first\n";
  }
  return text;
}

std::string table_of(const AllocatorTrace& trace, const ReplayOptions& options, const ReplayResult& result) {
  const auto& figures = result.statistics;
  std::string text = trace.name + ": " + std::to_string(trace.num_events) + " events\n";
  text += "settings: " + describe(options.settings) + ", device memory " +
          (options.settings.capacity_bytes > 0 ? format_bytes(options.settings.capacity_bytes) : "unlimited") + "\n";
  char line[120];
  const auto add = [&](const char* name, std::int64_t bytes) {
    std::snprintf(line, sizeof line, "  %-20s %14s %16lld\n", name, format_bytes(bytes).c_str(),
                  static_cast<long long>(bytes));
    text += line;
  };
  const auto count = [&](const char* name, std::int64_t number) {
    std::snprintf(line, sizeof line, "  %-20s %31lld\n", name, static_cast<long long>(number));
    text += line;
  };
  add("peak allocated", figures.allocated.peak);
  add("peak reserved", figures.reserved.peak);
  add("peak requested", figures.requested.peak);
  add("final allocated", figures.allocated.current);
  add("final reserved", figures.reserved.current);
  add("largest free block", result.largest_free_block_bytes);
  count("segments", static_cast<std::int64_t>(result.segments.size()));
  count("retries", figures.num_alloc_retries);
  count("out of memory", figures.num_ooms);
  return text + oom_text(trace, result) + sentence_of(options, result);
}

void write_files(const std::filesystem::path& folder, const ReplayOptions& options, const ReplayResult& result,
                 const AllocationHistory& history) {
  make_folders(folder);
  write_file_durably(folder / "memory_snapshot.pickle",
                     memory_snapshot_pickle(result.segments, history, options.settings));
  write_file_durably(folder / "trace.json", chrome_trace(history));
  log_info("wrote " + (folder / "memory_snapshot.pickle").string() + " and " + (folder / "trace.json").string());
  if (history.num_forgotten() > 0)
    log_warning("they hold the last " + std::to_string(history.size()) + " events, " +
                std::to_string(history.num_forgotten()) + " older ones are left out");
}

}  // namespace

int run_replay(const CommandLine& line) {
  const auto trace = read_allocator_trace(line.only_path("TRACE"));
  for (const auto& note : trace.notes) log_warning(note);
  const ReplayOptions options{settings_of(trace, line.overrides), line.overrides.empty()};
  AllocationHistory history(kMaxHistory, trace.name);
  const auto folder = line.value("output");
  const auto result = replay(trace, options, folder ? &history : nullptr);
  const auto text =
      line.has("json") ? dump_json_pretty(json_of(trace, options, result)) : table_of(trace, options, result);
  std::fputs(text.c_str(), stdout);
  if (folder) write_files(*folder, options, result, history);
  return exit_done;
}

}  // namespace assay
