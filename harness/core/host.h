#pragma once

#include <string>

namespace assay {

/// Name of this machine.
std::string host_name();

}  // namespace assay
