#include "harness/cli/show_command.h"

#include <cstdio>

#include "checkpoint/show.h"
#include "harness/core/error.h"

namespace assay {

int run_show(const CommandLine& line) {
  const auto listing = show(line.only_path("PATH"));
  std::fputs((line.has("json") ? dump_json_pretty(listing.json) : listing.text).c_str(), stdout);
  return exit_done;
}

}  // namespace assay
