#include "harness/core/host.h"

#include <unistd.h>

#include <array>

namespace assay {

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace assay
