#pragma once

#include <csignal>

namespace assay {

/// While it lives, SIGINT and SIGTERM do not end this process but are noted: between jobs, where no launcher takes
/// them. One at a time in a process.
class InterruptNote {
 public:
  InterruptNote();
  ~InterruptNote();
  InterruptNote(const InterruptNote&) = delete;
  InterruptNote& operator=(const InterruptNote&) = delete;

  /// True once a signal came.
  static bool noted();

 private:
  struct sigaction before_int_ {};
  struct sigaction before_term_ {};
};

}  // namespace assay
