// SPDX-License-Identifier: Apache-2.0
// Preloaded into the program by network_test: logs every internet socket to the file BRIM_TEST_SOCKET_LOG, then opens
// it as usual.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

extern "C" int socket(int domain, int type, int protocol) {
  const char* log = std::getenv("BRIM_TEST_SOCKET_LOG");
  if (log != nullptr && (domain == AF_INET || domain == AF_INET6)) {
    const int fd = ::open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0 || ::write(fd, "socket\n", 7) != 7) std::abort();  // an unlogged socket would pass the test
    ::close(fd);
  }
  using Socket = int (*)(int, int, int);
  return reinterpret_cast<Socket>(::dlsym(RTLD_NEXT, "socket"))(domain, type, protocol);
}
