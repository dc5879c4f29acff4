#include "model/config_reader.h"

#include <cmath>

#include "harness/core/nearest.h"

namespace assay {
namespace {

constexpr std::int64_t kLargest = std::int64_t{1} << 40;

}  // namespace

ConfigReader ConfigReader::nested(const Json& object, const std::string& name) const {
  return {object, where_ + ": " + name, kind_, notes_};
}

void ConfigReader::fail(const std::string& reason) const { throw Error(kind_, where_ + ": " + reason); }

void ConfigReader::refuse(const std::string& key, const std::string& reason) const {
  const auto found = object_.find(key);
  fail(key + (found == object_.end() ? "" : ": " + dump_json(*found)) + ": " + reason);
}

const Json* ConfigReader::find(const std::string& key) {
  known_.insert(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::int64_t ConfigReader::integer(const std::string& key, std::optional<std::int64_t> fallback, std::int64_t least) {
  const Json* value = find(key);
  if (value == nullptr) return use_default(key, fallback);
  if (!value->is_number_integer()) refuse(key, "must be a whole number");
  const bool too_large =
      value->is_number_unsigned() && value->get<std::uint64_t>() > static_cast<std::uint64_t>(kLargest);
  if (too_large || value->get<std::int64_t>() < least || value->get<std::int64_t>() > kLargest) {
    refuse(key, "must be between " + std::to_string(least) + " and " + std::to_string(kLargest));
  }
  return value->get<std::int64_t>();
}

double ConfigReader::number(const std::string& key, std::optional<double> fallback) {
  const Json* value = find(key);
  if (value == nullptr) return use_default(key, fallback);
  if (!value->is_number()) refuse(key, "must be a number");
  const double result = value->get<double>();
  if (!(result > 0) || !std::isfinite(result)) refuse(key, "must be above 0");
  return result;
}

bool ConfigReader::boolean(const std::string& key, bool fallback) {
  const Json* value = find(key);
  if (value == nullptr) return use_default(key, std::optional<bool>(fallback));
  if (!value->is_boolean()) refuse(key, "must be true or false");
  return value->get<bool>();
}

std::string ConfigReader::text(const std::string& key, std::optional<std::string> fallback) {
  const Json* value = find(key);
  if (value == nullptr) return use_default(key, fallback);
  if (!value->is_string()) refuse(key, "must be a text");
  return value->get<std::string>();
}

void ConfigReader::require(const std::string& key, const Json& neutral) {
  const Json* value = find(key);
  if (value != nullptr && *value != neutral) refuse(key, "is not supported, only " + dump_json(neutral) + " is");
}

void ConfigReader::refuse_unknown(const std::vector<std::string>& added, const std::set<std::string>& harmless) const {
  std::vector<std::string> names(known_.begin(), known_.end());
  names.insert(names.end(), harmless.begin(), harmless.end());
  for (const auto& key : added) {
    if (known_.count(key) != 0 || harmless.count(key) != 0) continue;
    const auto nearest = nearest_name(key, names);
    refuse(key, "is no key of config.json that has an effect here" +
                    (nearest.empty() ? "" : "; did you mean " + nearest + "?"));
  }
}

void ConfigReader::note_unknown(const std::set<std::string>& harmless) {
  for (const auto& item : object_.items()) {
    if (known_.count(item.key()) == 0 && harmless.count(item.key()) == 0) {
      notes_.push_back(where_ + ": " + item.key() + " is unknown and has no effect");
    }
  }
}

template <class T>
T ConfigReader::use_default(const std::string& key, const std::optional<T>& fallback) {
  if (!fallback) fail(key + " is missing");
  notes_.push_back(where_ + ": " + key + " is absent, the default is taken");
  return *fallback;
}

}  // namespace assay
