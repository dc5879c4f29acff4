#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "harness/acceptance/check.h"
#include "harness/acceptance/run_record.h"

namespace assay {

/// The document report.json. Pure: the same files give the same document. What a device cannot measure, and what is
/// missing, is null with a "<field>_reason" beside it.
Json make_report(const RunRecord& run, const std::vector<Result>& results);

/// report.md: verdict first, with the worst margin and the ranks that failed; then baseline, checks, memory, speed,
/// loss, utilization, checkpoints. Made from the document alone.
std::string report_markdown(const Json& report);

/// What write_reports writes, as paths below the run folder: no evidence, it can be made again.
std::set<std::string> report_files();

/// Writes report_files(): report.json and report.md. Returns the document. Throws Error{io}.
Json write_reports(const std::filesystem::path& folder, const RunRecord& run, const std::vector<Result>& results);

}  // namespace assay
