#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "harness/core/json.h"

namespace assay {

/// {"parameters": 4096, ...}: bytes of a ledger's array under the names of its categories or phases.
template <std::size_t n>
Json bytes_by_name(const std::array<std::int64_t, n>& values, const std::array<std::string_view, n>& names) {
  Json object = Json::object();
  for (std::size_t i = 0; i < n; ++i) object[std::string(names[i])] = values[i];
  return object;
}

}  // namespace assay
