#pragma once

#include "harness/device/device.h"

namespace assay {

/// The device whose results and scratch memory the Meta kernels of this thread stand for.
void set_meta_target(const MetaTarget& target);

}  // namespace assay
