#include "checkpoint/show.h"

#include <algorithm>

#include "checkpoint/checked_file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/safetensors.h"
#include "harness/core/error.h"
#include "harness/core/units.h"

namespace assay {
namespace {

std::string size_text(std::uint64_t bytes) {
  return std::to_string(bytes) + " bytes (" + format_bytes(static_cast<std::int64_t>(bytes)) + ")";
}

/// Characters, not bytes, of UTF-8 text.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; }));
}

/// Columns as wide as their widest cell; the last one is ragged.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      text += "  " + row[i];
      if (i + 1 < row.size()) text.append(widths[i] - width_of(row[i]), ' ');
    }
    text += "\n";
  }
  return text;
}

/// A name as it can be shown on one line.
std::string shown_name(const std::string& name) {
  const auto quoted = dump_json(name);
  return quoted == "\"" + name + "\"" && !name.empty() ? name : quoted;
}

struct Totals {
  std::uint64_t tensors = 0;
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;
};

/// Lists the tensors of one file, and adds them to the totals.
Listing list_tensors(const SafetensorsFile& file, Totals& totals) {
  Listing listing{Json::array(), ""};
  std::vector<std::vector<std::string>> rows{{"name", "dtype", "shape", "bytes"}};
  for (const auto& tensor : file.tensors()) {
    std::uint64_t elements = 1;
    for (const auto size : tensor.shape) elements *= static_cast<std::uint64_t>(size);
    listing.json.push_back(
        Json{{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"bytes", tensor.size_bytes()}});
    rows.push_back(
        {shown_name(tensor.name), tensor.dtype, dump_json(tensor.shape), std::to_string(tensor.size_bytes())});
    totals.tensors += 1;
    totals.elements += elements;
    totals.bytes += tensor.size_bytes();
  }
  listing.text = table(rows);
  return listing;
}

Json json_of(const Totals& totals) {
  return {{"num_tensors", totals.tensors}, {"num_elements", totals.elements}, {"tensor_bytes", totals.bytes}};
}

std::string text_of(const Totals& totals) {
  return std::to_string(totals.tensors) + " tensors, " + std::to_string(totals.elements) + " elements, " +
         size_text(totals.bytes) + "\n";
}

Listing start(const char* kind, const std::filesystem::path& path) {
  return {Json{{"kind", kind}, {"path", path.string()}}, std::string(kind) + " " + path.string() + "\n"};
}

Listing show_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  auto listing = start("safetensors", path);
  Totals totals;
  const auto tensors = list_tensors(file, totals);
  listing.json["tensors"] = tensors.json;
  listing.json["metadata"] = file.metadata();
  listing.json.update(json_of(totals));
  listing.text += tensors.text;
  for (const auto& [key, value] : file.metadata()) {
    listing.text += "  metadata " + shown_name(key) + ": " + dump_json(value) + "\n";
  }
  listing.text += text_of(totals);
  return listing;
}

Listing show_model_folder(const std::filesystem::path& path) {
  const ModelFolder folder(path);
  auto listing = start("model folder", path);
  Totals totals;
  listing.json["files"] = Json::array();
  for (const auto& file : folder.files()) {
    const auto tensors = list_tensors(*file, totals);
    const auto name = file->path().filename().string();
    listing.json["files"].push_back(
        Json{{"name", name}, {"size_bytes", file->size_bytes()}, {"tensors", tensors.json}});
    listing.text += name + ", " + size_text(file->size_bytes()) + "\n" + tensors.text;
  }
  listing.json["ignored"] = folder.ignored();
  listing.json.update(json_of(totals));
  for (const auto& name : folder.ignored()) listing.text += name + ": ignored, not part of the model\n";
  listing.text += text_of(totals);
  return listing;
}

void add_manifest(Listing& listing, const Manifest& manifest) {
  listing.json.update(Json{{"step", manifest.step},
                           {"world_size", manifest.world_size},
                           {"created", manifest.created},
                           {"recipe_hash", manifest.run.recipe_hash},
                           {"versions", manifest.run.versions},
                           {"size_bytes", manifest.size_bytes()}});
  listing.text += "step " + std::to_string(manifest.step) + ", " + std::to_string(manifest.world_size) +
                  " ranks, created " + manifest.created + ", recipe " + manifest.run.recipe_hash + ", " +
                  size_text(manifest.size_bytes()) + "\n";
}

Listing show_manifest(const std::filesystem::path& path) {
  const auto manifest = parse_manifest(read_text_file(path), path.string());
  auto listing = start("manifest", path);
  add_manifest(listing, manifest);
  std::vector<std::vector<std::string>> rows;
  listing.json["files"] = Json::array();
  for (const auto& file : manifest.files) {
    listing.json["files"].push_back(to_json(file));
    rows.push_back({file.name, size_text(file.size_bytes), std::to_string(file.chunk_checksums.size()) + " checksums"});
  }
  listing.text += table(rows);
  return listing;
}

Listing show_checkpoint(const std::filesystem::path& path) {
  const auto manifest = read_manifest(path);
  auto listing = start("checkpoint", path);
  add_manifest(listing, manifest);
  Totals totals;
  listing.json["files"] = Json::array();
  for (const auto& record : manifest.files) {
    for (CheckedFileReader reader(path / record.name, record); !reader.at_end();) reader.next();
    const SafetensorsFile file(path / record.name);
    const auto tensors = list_tensors(file, totals);
    listing.json["files"].push_back(Json{{"name", record.name},
                                         {"size_bytes", record.size_bytes},
                                         {"num_checksums", record.chunk_checksums.size()},
                                         {"verified", true},
                                         {"tensors", tensors.json}});
    listing.text += record.name + ", " + size_text(record.size_bytes) + ", all " +
                    std::to_string(record.chunk_checksums.size()) + " checksums verified\n" + tensors.text;
  }
  listing.json.update(json_of(totals));
  listing.text += text_of(totals);
  return listing;
}

}  // namespace

Listing show(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) throw Error(ErrorKind::data, "there is no file or folder " + path.string());
  if (std::filesystem::is_directory(path)) {
    return std::filesystem::exists(path / manifest_name) ? show_checkpoint(path) : show_model_folder(path);
  }
  return path.extension() == ".json" ? show_manifest(path) : show_safetensors(path);
}

}  // namespace assay
