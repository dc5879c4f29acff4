#include "checkpoint/manifest.h"

#include <algorithm>

#include "harness/core/error.h"

namespace assay {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& reason) {
  throw Error(ErrorKind::data, what + ": " + reason);
}

const Json& field(const Json& object, const char* key, const std::string& what) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (found == object.end()) fail(what, std::string("\"") + key + "\" is missing");
  return *found;
}

std::string text_field(const Json& object, const char* key, const std::string& what) {
  const auto& value = field(object, key, what);
  if (!value.is_string()) fail(what, std::string("\"") + key + "\" is no string: " + dump_json(value));
  return value.get<std::string>();
}

std::uint64_t count_field(const Json& object, const char* key, std::uint64_t low, std::uint64_t high,
                          const std::string& what) {
  const auto& value = field(object, key, what);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() < low || value.get<std::uint64_t>() > high) {
    fail(what, std::string("\"") + key + "\" is " + dump_json(value) + ", expected a whole number of " +
                   std::to_string(low) + " to " + std::to_string(high));
  }
  return value.get<std::uint64_t>();
}

const Json& object_field(const Json& object, const char* key, const std::string& what) {
  const auto& value = field(object, key, what);
  if (!value.is_object()) fail(what, std::string("\"") + key + "\" is no object");
  return value;
}

/// Over everything but itself, in the order in which it is written.
std::string checksum_without_itself(Json json) {
  json.erase("checksum");
  return xxh3_of(dump_json(json));
}

}  // namespace

std::uint64_t Manifest::size_bytes() const {
  std::uint64_t total = 0;
  for (const auto& file : files) total += file.size_bytes;
  return total;
}

Json to_json(const FileRecord& record) {
  return {{"name", record.name},
          {"size_bytes", record.size_bytes},
          {"chunk_bytes", record.chunk_bytes},
          {"chunk_checksums", record.chunk_checksums}};
}

FileRecord file_record_from_json(const Json& json, const std::string& what) {
  FileRecord record;
  record.name = text_field(json, "name", what);
  if (record.name.empty() || record.name == ".." || record.name.find('/') != std::string::npos) {
    fail(what, "\"name\" " + dump_json(record.name) + " is no plain file name");
  }
  record.size_bytes = count_field(json, "size_bytes", 1, std::uint64_t{1} << 62U, what);
  record.chunk_bytes = count_field(json, "chunk_bytes", 1, std::uint64_t{1} << 30U, what);
  const auto& checksums = field(json, "chunk_checksums", what);
  const auto expected = (record.size_bytes - 1) / record.chunk_bytes + 1;
  if (!checksums.is_array() || checksums.size() != expected) {
    fail(what, "\"chunk_checksums\" of " + record.name + " is no list of " + std::to_string(expected));
  }
  for (const auto& checksum : checksums) {
    if (!checksum.is_string()) fail(what, "a checksum of " + record.name + " is no string");
    record.chunk_checksums.push_back(checksum.get<std::string>());
  }
  return record;
}

std::string manifest_text(const Manifest& manifest) {
  Json json{{"format_version", manifest_format_version}, {"step", manifest.step},
            {"world_size", manifest.world_size},         {"created", manifest.created},
            {"recipe_hash", manifest.run.recipe_hash},   {"recipe", manifest.run.recipe},
            {"versions", manifest.run.versions},         {"files", Json::array()}};
  for (const auto& file : manifest.files) json["files"].push_back(to_json(file));
  json["checksum"] = checksum_without_itself(json);
  return dump_json_pretty(json);
}

Manifest parse_manifest(std::string_view text, const std::string& what) {
  const auto json = parse_json(text, what);
  const auto version = count_field(json, "format_version", 1, std::uint64_t{1} << 62U, what);
  if (version > manifest_format_version) {
    throw Error(ErrorKind::usage, what + " has format_version " + std::to_string(version) +
                                      "; this program reads up to " + std::to_string(manifest_format_version) +
                                      ": use a newer assay");
  }
  if (text_field(json, "checksum", what) != checksum_without_itself(json)) {
    fail(what, "it is not as it was written (checksum)");
  }
  Manifest manifest;
  manifest.step = static_cast<std::int64_t>(count_field(json, "step", 0, std::uint64_t{1} << 62U, what));
  manifest.world_size = static_cast<int>(count_field(json, "world_size", 1, 1U << 20U, what));
  manifest.created = text_field(json, "created", what);
  manifest.run.recipe_hash = text_field(json, "recipe_hash", what);
  manifest.run.recipe = object_field(json, "recipe", what);
  manifest.run.versions = object_field(json, "versions", what);
  const auto& files = field(json, "files", what);
  if (!files.is_array()) fail(what, "\"files\" is no list");
  for (const auto& file : files) manifest.files.push_back(file_record_from_json(file, what));
  if (manifest.files.size() != static_cast<std::size_t>(manifest.world_size)) {
    fail(what, std::to_string(manifest.files.size()) + " files for world_size " + std::to_string(manifest.world_size));
  }
  return manifest;
}

Manifest read_manifest(const std::filesystem::path& folder) {
  const auto path = folder / manifest_name;
  return parse_manifest(read_text_file(path), path.string());
}

}  // namespace assay
