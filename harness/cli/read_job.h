#pragma once

#include <string_view>
#include <vector>

#include "harness/train/job.h"

namespace assay {

/// The job that a rank is given on its standard input: {"kind", "recipe", "folder", "options"}, or for a dry run
/// "recipes", which go into `dry_runs`. World and attempt are left as they are by default. Throws Error{usage} that
/// names the field that is missing or of the wrong type, Error{data} if it is no JSON, Error{recipe} for a bad recipe.
Job read_job(std::string_view text, std::vector<Recipe>& dry_runs);

}  // namespace assay
