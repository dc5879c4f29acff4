#include "harness/acceptance/diagnosis.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "harness/acceptance/remedies.h"

namespace assay {
namespace {

/// How PyTorch says that it has no kernel for a device or dtype.
bool is_operator_error(const std::string& message) {
  constexpr std::array<std::string_view, 4> signs{"Could not run 'aten::", "not implemented for '", "no kernel image",
                                                  "is not currently implemented"};
  return std::any_of(signs.begin(), signs.end(),
                     [&](std::string_view sign) { return message.find(sign) != std::string::npos; });
}

}  // namespace

std::string diagnosis_of(const JobFailure& failure) {
  if (failure.interrupted) return "It was interrupted, which says nothing about the machine.";
  if (failure.reason == "killed") {
    return "It was killed from outside; the kernel does so, with SIGKILL, when the machine's memory is full (see "
           "dmesg).";
  }
  if (failure.reason == "stopped" || failure.reason == "stalled") {
    return "It does not go on by itself: look at what holds this process, its device or its connections.";
  }
  if (is_operator_error(failure.sentence)) {
    return "Operator error: this device or dtype has no kernel for an operator of the model; change train.precision, "
           "model.attention or the device.";
  }
  if (failure.error == "numeric") {
    return "Numbers are not finite: lower optimizer.learning_rate, check train.precision and the data.";
  }
  if (failure.phase == "load" || failure.phase == "restore") {
    return "It fails while the model is loaded: check the weight dtype, the quantization and the load settings "
           "(model.path, model.init, train.precision, quantization.type).";
  }
  if (failure.phase == "save") {
    return "The model trains, but its state cannot be saved: check free space and permissions of the run folder.";
  }
  if (failure.phase == "forward" || failure.phase == "backward" || failure.phase == "accumulate" ||
      failure.phase == "update") {
    const bool sure = failure.error == "memory";
    return "The model loads, but phase " + failure.phase + " fails: " +
           (sure ? "activations or training states exceed" : "often activations or training states that exceed") +
           " the memory; lower train.micro_batch_size or data.sequence_length, then turn on "
           "train.activation_checkpointing.";
  }
  return "The log of the rank says more.";
}

std::string diagnosis_of(const JobRecord& job, const JobFailure& failure) {
  const auto remedy = failure.error == "memory" && job.remedies.is_object() ? nearest_remedy(job.remedies) : "";
  return diagnosis_of(failure) + (remedy.empty() ? "" : " What would have fitted: " + remedy + ".");
}

}  // namespace assay
