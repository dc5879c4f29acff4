#include "harness/launch/rendezvous.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "harness/core/error.h"

namespace assay {

ListeningSocket listen_on(const std::string& address, int port) {
  const auto fail = [&](const char* call) {
    throw Error(ErrorKind::communication, std::string(call) + " for the rendezvous on " + address + ":" +
                                              std::to_string(port) + ": " + std::strerror(errno) +
                                              "; choose another address or port");
  };
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<std::uint16_t>(port));
  errno = EINVAL;
  if (::inet_pton(AF_INET, address.c_str(), &name.sin_addr) != 1) fail("inet_pton");
  const FileDescriptor opened(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!opened) fail("socket");
  ListeningSocket result;
  // A launcher started without standard streams would otherwise hand the socket over as one of them.
  result.fd = FileDescriptor(::fcntl(opened.get(), F_DUPFD_CLOEXEC, 3));
  if (!result.fd) fail("fcntl");
  if (::bind(result.fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof name) != 0) fail("bind");
  if (::listen(result.fd.get(), SOMAXCONN) != 0) fail("listen");
  socklen_t length = sizeof name;
  if (::getsockname(result.fd.get(), reinterpret_cast<sockaddr*>(&name), &length) != 0) fail("getsockname");
  result.port = ntohs(name.sin_port);
  return result;
}

int find_free_port() { return listen_on("127.0.0.1", 0).port; }

}  // namespace assay
