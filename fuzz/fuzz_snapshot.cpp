// Any bytes as a saved cache: as a file, and as tables whose checksum fits, which a fuzzer does not find. What is
// accepted has to make sense, and to be restored or refused without a trace. Seeds: fuzz/seeds/fuzz_snapshot.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kv/snapshot.hpp"

namespace {

using namespace stet;

void require(bool condition) {
  if (!condition) std::abort();
}

bool one_line(const Error& error) {
  return !error.message.empty() && error.message.find('\n') == std::string::npos;
}

// A cache of the file's own layers, where they are small.
void restore_all(const kv::Snapshot& snapshot) {
  CacheOptions options;
  options.max_len = 64;
  options.layout = Layout::paged;
  const auto plan = plan_cache(snapshot.layers(), options);
  if (!plan || plan->reserved > (std::size_t{1} << 22)) return;
  auto cache = make_cache(snapshot.layers(), options);
  require(cache.has_value());
  for (std::size_t i = 0; i < snapshot.sequences().size(); ++i) {
    const auto seq = snapshot.restore(i, snapshot.identity(), **cache);
    if (!seq) {
      require(one_line(seq.error()) && (*cache)->usage().seqs == 0 && (*cache)->usage().live == 0);
      continue;
    }
    require((*cache)->length(*seq).value() == snapshot.sequences()[i].length());
    require((*cache)->close(*seq).has_value());
  }
}

void as_file(std::span<const std::byte> bytes) {
  static const int fd = ::memfd_create("fuzz", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  require(fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes.size())) == 0);
  require(::pwrite(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  const auto snapshot = kv::Snapshot::open(path);
  if (!snapshot) return require(one_line(snapshot.error()));
  (void)snapshot->verify();
  restore_all(*snapshot);
}

// The input is the tables; header, digest of tables and cells are made to fit.
void as_tables(std::span<const std::byte> input) {
  std::vector<std::byte> tables(input.begin(), input.end());
  tables.resize((tables.size() + 63) / 64 * 64);
  constexpr std::size_t kCells = 4096;
  kv::SnapshotHeader header;
  header.table_bytes = tables.size();
  for (const std::size_t cells : {std::size_t{0}, kCells}) {
    header.file_bytes = kv::kHeaderBytes + tables.size() + cells;
    header.tables = base::digest_of(tables);
    const auto parsed = kv::parse_tables(tables, header.file_bytes, "fuzz");
    if (!parsed) {
      require(one_line(parsed.error()));
    } else {
      // What was read writes itself again.
      require(kv::table_bytes(*parsed) == tables);
    }
    const auto head = kv::header_bytes(header);
    std::vector<std::byte> file(head.begin(), head.end());
    file.insert(file.end(), tables.begin(), tables.end());
    file.resize(header.file_bytes);
    as_file(file);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  as_file(bytes);
  as_tables(bytes);
  return 0;
}
