#pragma once

#include <string>

#include "harness/acceptance/run_record.h"

namespace assay {

/// What a failed phase usually means and what to look at next (guide 1, one card): load: weight dtype, quantization,
/// load settings; later phases: activations or training states; an operator the device lacks is named as such.
std::string diagnosis_of(const JobFailure& failure);

/// The same; after an out-of-memory also the nearest change that would have made the job fit.
std::string diagnosis_of(const JobRecord& job, const JobFailure& failure);

}  // namespace assay
