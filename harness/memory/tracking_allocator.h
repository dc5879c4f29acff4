#pragma once

#include <memory>

#include "harness/memory/ledger.h"

namespace assay {

/// Installs allocators for the CPU and Meta devices that report to the ledger of the allocating thread. Tensors
/// made before keep the allocator they came from; later calls do nothing. A thread without a LedgerScope, or inside an
/// UntrackedScope, is not counted. An allocation past the ledger's capacity throws c10::OutOfMemoryError and changes
/// nothing.
void install_tracking_allocators();

/// While it lives, this thread's allocations count in `ledger`. A block goes back to the ledger it came from, from
/// whichever thread; blocks keep their ledger alive. Nests.
class LedgerScope {
 public:
  explicit LedgerScope(std::shared_ptr<MemoryLedger> ledger);
  ~LedgerScope();
  LedgerScope(const LedgerScope&) = delete;
  LedgerScope& operator=(const LedgerScope&) = delete;

 private:
  std::shared_ptr<MemoryLedger> outer_;
};

}  // namespace assay
