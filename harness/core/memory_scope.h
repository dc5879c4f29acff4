#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace assay {

/// What a piece of device memory is for.
enum class MemoryCategory { parameters, gradients, optimizer, activations, communication, temporaries };
inline constexpr std::array<std::string_view, 6> kMemoryCategoryNames{"parameters",  "gradients",     "optimizer",
                                                                      "activations", "communication", "temporaries"};

/// What the rank is doing. One value a rank at a time.
enum class Phase { load, forward, backward, accumulate, update, save, restore };
inline constexpr std::array<std::string_view, 7> kPhaseNames{"load",   "forward", "backward", "accumulate",
                                                             "update", "save",    "restore"};

inline std::string_view name_of(MemoryCategory category) { return kMemoryCategoryNames[static_cast<size_t>(category)]; }
inline std::string_view name_of(Phase phase) { return kPhaseNames[static_cast<size_t>(phase)]; }

/// While it lives, device memory allocated by this thread is counted under one category. Scopes nest; the innermost
/// counts. Without one, memory is `activations` if it outlives the forward phase, else `temporaries`.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryCategory category);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

  /// The innermost category of this thread, nothing outside of every scope.
  static std::optional<MemoryCategory> current();

 private:
  std::optional<MemoryCategory> outer_;
};

/// While it lives, what this thread allocates is not device memory and not counted: host staging, a library's own
/// buffers. Nests.
class UntrackedScope {
 public:
  UntrackedScope();
  ~UntrackedScope();
  UntrackedScope(const UntrackedScope&) = delete;
  UntrackedScope& operator=(const UntrackedScope&) = delete;

  static bool active();
};

}  // namespace assay
