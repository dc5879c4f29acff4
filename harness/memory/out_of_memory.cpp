#include "harness/memory/out_of_memory.h"

#include "harness/core/units.h"
#include "harness/memory/ledger_json.h"

namespace assay {

double OutOfMemory::fragmentation() const {
  return reserved_bytes == 0
             ? 0
             : static_cast<double>(reserved_bytes - allocated_bytes) / static_cast<double>(reserved_bytes);
}

std::string OutOfMemory::sentence() const {
  return "asked for " + format_bytes(requested_bytes) + ", allocated " + format_bytes(allocated_bytes) + ", reserved " +
         format_bytes(reserved_bytes) + " of " + format_bytes(capacity_bytes) + ", largest free block " +
         format_bytes(largest_free_block_bytes) + ", in phase " + std::string(name_of(phase)) +
         (unit.empty() ? "" : ", " + unit) + (operation.empty() ? "" : ", " + operation);
}

Json OutOfMemory::to_json() const {
  return {{"requested_bytes", requested_bytes},
          {"phase", name_of(phase)},
          {"unit", unit.empty() ? Json() : Json(unit)},
          {"operation", operation.empty() ? Json() : Json(operation)},
          {"by_category", bytes_by_name(by_category, kMemoryCategoryNames)},
          {"allocated_bytes", allocated_bytes},
          {"reserved_bytes", reserved_bytes},
          {"capacity_bytes", capacity_bytes},
          {"largest_free_block_bytes", largest_free_block_bytes},
          {"fragmentation", fragmentation()}};
}

}  // namespace assay
