#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace assay {

/// The whole content of a file; one packed with gzip is unpacked. Throws Error{data} that names the file if it is
/// missing, empty, holds more than `max_bytes`, or if its gzip data are cut or damaged (then with the line where they
/// end), and Error{io} if it cannot be read.
std::string read_packed_file(const std::filesystem::path& path, std::size_t max_bytes);

/// Unpacks gzip data, of several members too; text that is not packed is returned as it is. Errors as above.
std::string unpack_gzip(std::string_view bytes, const std::string& name, std::size_t max_bytes);

}  // namespace assay
