#include "harness/cli/interrupt.h"

namespace assay {
namespace {

volatile std::sig_atomic_t signal_noted = 0;

void note_signal(int) { signal_noted = 1; }

}  // namespace

InterruptNote::InterruptNote() {
  signal_noted = 0;
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &before_int_);
  ::sigaction(SIGTERM, &action, &before_term_);
}

InterruptNote::~InterruptNote() {
  ::sigaction(SIGINT, &before_int_, nullptr);
  ::sigaction(SIGTERM, &before_term_, nullptr);
}

bool InterruptNote::noted() { return signal_noted != 0; }

}  // namespace assay
