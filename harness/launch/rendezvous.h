#pragma once

#include <string>

#include "harness/core/files.h"

namespace assay {

/// A TCP socket that already listens, so that its port cannot be taken by anyone else.
struct ListeningSocket {
  FileDescriptor fd;  ///< close-on-exec, above the standard streams
  int port = 0;
};

/// Listens on a numeric IPv4 address; port 0 takes a free one. Does not block. Throws Error{communication}.
ListeningSocket listen_on(const std::string& address, int port);

/// A port that was free a moment ago, for programs that open it themselves: another process may be faster.
int find_free_port();

}  // namespace assay
