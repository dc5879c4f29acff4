#pragma once

namespace assay {

/// Number of threads of the CPU rank whose scratch memory the Meta kernels of this thread stand for.
void set_meta_target_threads(int num_threads);

}  // namespace assay
