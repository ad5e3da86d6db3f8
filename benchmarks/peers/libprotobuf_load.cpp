// Parses every record of a .et file with libprotobuf: one message used again and again, or all
// messages of 4096 records in an arena. Prints seconds, CPU seconds, nodes, dependencies.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include <google/protobuf/arena.h>

#include "chakra.pb.h"

namespace {

double cpu_seconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
         1e-6 * (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

bool length_at(const uint8_t*& at, const uint8_t* end, uint64_t& value) {
  value = 0;
  for (int shift = 0; at < end && shift < 64; shift += 7) {
    const uint8_t byte = *at++;
    value |= uint64_t(byte & 127) << shift;
    if (byte < 128) return true;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const bool in_arena = std::strcmp(argv[1], "arena") == 0;
  const int file = open(argv[2], O_RDONLY);
  struct stat status;
  if (file < 0 || fstat(file, &status) != 0) return 1;
  const size_t size = status.st_size;
  auto* data = static_cast<const uint8_t*>(mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0));
  if (data == MAP_FAILED) return 1;
  const auto start = std::chrono::steady_clock::now();
  const double cpu = cpu_seconds();
  const uint8_t* at = data;
  const uint8_t* end = data + size;
  uint64_t nodes = 0, deps = 0, length = 0;
  genie::chakra::GlobalMetadata head;
  if (!length_at(at, end, length) || !head.ParseFromArray(at, int(length))) return 1;
  at += length;
  genie::chakra::Node reused;
  google::protobuf::Arena arena;
  while (at < end && length_at(at, end, length)) {
    genie::chakra::Node* node = &reused;
    if (in_arena) {
      if (nodes % 4096 == 0) arena.Reset();
      node = google::protobuf::Arena::CreateMessage<genie::chakra::Node>(&arena);
    }
    if (!node->ParseFromArray(at, int(length))) return 1;
    deps += node->ctrl_deps_size() + node->data_deps_size();
    at += length;
    ++nodes;
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  std::printf("{\"seconds\": %.6f, \"cpu\": %.6f, \"nodes\": %llu, \"deps\": %llu}\n", taken.count(),
              cpu_seconds() - cpu, (unsigned long long)nodes, (unsigned long long)deps);
  return 0;
}
