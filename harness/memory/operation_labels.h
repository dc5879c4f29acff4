#pragma once

#include <ATen/record_function.h>

#include <memory>

#include "harness/memory/ledger.h"

namespace assay {

/// While it lives, `ledger` is told which operator this thread is in: the outermost one, so that a block bears the name
/// of what was called. Costs some 100 ns an operator; for dry runs.
class OperationLabels {
 public:
  explicit OperationLabels(std::shared_ptr<MemoryLedger> ledger);
  ~OperationLabels();
  OperationLabels(const OperationLabels&) = delete;
  OperationLabels& operator=(const OperationLabels&) = delete;

 private:
  at::CallbackHandle handle_;
  std::shared_ptr<MemoryLedger> outer_;
};

}  // namespace assay
