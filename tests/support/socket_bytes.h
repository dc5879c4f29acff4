#pragma once

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace assay {

/// Bytes that this process has sent on its connected TCP sockets and that have arrived (tcpi_bytes_acked), from the
/// start of each connection. What was sent on sockets closed since is not in it.
inline std::int64_t socket_bytes_sent() {
  std::int64_t sum = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;  // not a TCP socket
    constexpr int kEstablished = 1;  // TCP_ESTABLISHED of <netinet/tcp.h>, which <linux/tcp.h> excludes
    if (info.tcpi_state == kEstablished) sum += static_cast<std::int64_t>(info.tcpi_bytes_acked);
  }
  return sum;
}

}  // namespace assay
