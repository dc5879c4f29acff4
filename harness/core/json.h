#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace assay {

/// Keeps the order in which keys were written, so that files read as they were meant.
using Json = nlohmann::ordered_json;

/// One line of strict JSON: non-finite numbers are null, bytes that are not UTF-8 are replaced. Never throws.
std::string dump_json(const Json& value);

/// The same, indented by two spaces and ended by a newline, for files a person opens.
std::string dump_json_pretty(const Json& value);

/// Parses strict JSON (UTF-8, no comments, no duplicate keys, at most 100 levels). Throws Error{data} that names
/// `what`.
Json parse_json(std::string_view text, const std::string& what);

/// The same for objects with very many keys: these come out sorted, where Json would search all keys at each insertion.
nlohmann::json parse_large_json(std::string_view text, const std::string& what);

/// Sets object[key] to value, or to null with a "<key>_reason" beside it if value is not finite.
void set_number(Json& object, const std::string& key, double value);

}  // namespace assay
